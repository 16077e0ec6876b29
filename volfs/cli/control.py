"""Calls to a mount that cannot hang the caller: the control plane and a few system calls, with a deadline.

It knows the names of the control xattrs and nothing about what they mean.

*Concurrency:* a system call on a hung FUSE mount cannot be interrupted, not even
by SIGKILL once the daemon has the request, and a process does not end before all
its threads do. So each call is made by a forked child, which is left behind when
the deadline passes; `cli.bulk` has one child for many calls. The child shares no
descriptor with us but one pipe, so that whoever reads our output does not wait for
it either. The CLI has no threads.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

from volfs.kernel import mounts

__all__ = [
    "STATUS_DEADLINE_S",
    "alone",
    "bounded",
    "commit",
    "is_dead",
    "on_volfs",
    "read",
    "read_status",
    "unmount",
    "write",
]

#: The status always answers (B3); a mount that takes longer is hung.
STATUS_DEADLINE_S = 10.0

_STATUS: Final = "user.volfs.status"
_COMMIT: Final = "user.volfs.commit"


def bounded(work: Callable[[], bytes], deadline_s: float | None) -> bytes:
    """What `work` returns, called in a child. OSError as it raised; TimeoutError after the deadline."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _answer(work, writing)
    os.close(writing)
    answer = bytearray()
    try:
        until = None if deadline_s is None else time.monotonic() + deadline_s
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            if not select.select([reading], [], [], left)[0]:
                raise TimeoutError(errno.ETIMEDOUT, "no answer within the deadline")
            piece = os.read(reading, 65536)
            if not piece:
                break
            answer += piece
    except BaseException:
        os.kill(child, signal.SIGKILL)  # and no wait: it may not be able to die yet
        raise
    finally:
        os.close(reading)
    os.waitpid(child, 0)
    number = int.from_bytes(answer[:4], "little") if len(answer) >= 4 else errno.EIO
    if number:
        text = answer[4:].decode(errors="replace")
        raise OSError(number, text or os.strerror(number))
    return bytes(answer[4:])


def read_status(mountpoint: Path) -> dict[str, Any]:
    """The daemon's status document."""
    raw = bounded(lambda: os.getxattr(mountpoint, _STATUS), STATUS_DEADLINE_S)
    document = json.loads(raw)
    if not isinstance(document, dict):
        raise OSError(errno.EPROTO, "the mount answered something that is not a status")
    return document


def read(mountpoint: Path, name: str, deadline_s: float | None) -> bytes:
    """A control of the mount."""
    return bounded(lambda: os.getxattr(mountpoint, name), deadline_s)


def write(mountpoint: Path, name: str, value: bytes) -> None:
    """Set a control of the mount that is only noted by its daemon."""

    def work() -> bytes:
        os.setxattr(mountpoint, name, value)
        return b""

    bounded(work, STATUS_DEADLINE_S)


def commit(path: Path, deadline_s: float | None) -> None:
    """Commit the file, or everything under the directory; returns when that is done."""

    def work() -> bytes:
        os.setxattr(path, _COMMIT, b"1")
        return b""

    bounded(work, deadline_s)


def is_dead(mountpoint: Path) -> bool:
    """Whether the mount's daemon is gone. A mount that does not answer is not known to be."""
    try:
        return bounded(lambda: b"1" if mounts.is_dead(mountpoint) else b"", STATUS_DEADLINE_S) == b"1"
    except TimeoutError:
        return False


def on_volfs(path: Path) -> bool:
    """Whether the path lies on a volfs mount. Anywhere else a control xattr would just be stored."""
    device = int(bounded(lambda: b"%d" % os.stat(path).st_dev, STATUS_DEADLINE_S))
    numbers = (os.major(device), os.minor(device))
    return any(mount.is_volfs and mount.device == numbers for mount in mounts.mounts())


def unmount(mountpoint: Path, *, lazy: bool, deadline_s: float) -> None:
    """As mounts.unmount. Taking a mount away flushes mapped pages first, which needs its daemon."""

    def work() -> bytes:
        mounts.unmount(mountpoint, lazy=lazy)
        return b""

    bounded(work, deadline_s)


def alone(writing: int) -> int:
    """Make this forked child share nothing with its parent but one descriptor; its number from now on."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nothing, standard)
    kept = os.dup2(writing, 3) if writing != 3 else writing
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
    return kept


def _answer(work: Callable[[], bytes], writing: int) -> NoReturn:
    """The child: one call, one answer, no return."""
    try:
        kept = alone(writing)
        try:
            answer = bytes(4) + work()
        except OSError as error:
            text = (error.strerror or str(error)).encode(errors="replace")
            answer = (error.errno or errno.EIO).to_bytes(4, "little") + text
        while answer:
            answer = answer[os.write(kept, answer) :]
    finally:
        # Whatever happened: a second copy of the CLI must not go on from here.
        os._exit(0)
