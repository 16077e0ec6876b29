"""What a thread that waits for the answer to a lookup is about to do. FUSE does not say, its call does.

A lookup that belongs to an open with O_CREAT may be told that a name is free when it
only seems to be so; any other one may not. The kernel sends both alike. While it
waits, the thread's system call and its arguments stand in `/proc/TID/syscall`
(proc(5)), and the path in its memory; both may be read by whoever may trace it.

It does not decide what follows. Where anything is unclear, or may not be read (another
user's thread, a container, Yama), the answer is that nothing is known.

*Concurrency:* a few system calls on procfs, made in the trio thread.
"""

from __future__ import annotations

import os
from typing import Final

__all__ = ["creates"]

#: openat(2) on the machines that we know. The numbers name no call on paths in their 32-bit tables.
_OPENAT: Final = {"x86_64": 257, "aarch64": 56}.get(os.uname().machine)

_PATH_MAX: Final = 4096


def creates(thread: int, name: bytes) -> bool:
    """Whether the thread waits in an open that creates `name`: the end of its path, nothing on the way."""
    if _OPENAT is None or thread <= 0:
        return False
    try:
        call = _read(f"/proc/{thread}/syscall", 256).split()
        # The call, then six arguments in hexadecimal, then pointers; `running` if it does not wait.
        if len(call) < 4 or call[0] != b"%d" % _OPENAT or not int(call[3], 16) & os.O_CREAT:
            return False
        path = _read(f"/proc/{thread}/mem", _PATH_MAX, int(call[2], 16))
    except (OSError, ValueError, OverflowError):
        return False
    path, ends, _ = path.partition(b"\0")
    parts = path.split(b"/")
    # A directory of the same name on the way: which of the two is looked up cannot be told.
    return bool(ends) and parts[-1] == name and parts.count(name) == 1


def _read(path: str, size: int, offset: int = 0) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(fd, size, offset)
    finally:
        os.close(fd)
