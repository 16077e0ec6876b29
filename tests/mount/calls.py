"""System calls that Python does not offer, and calls made as another user or in another process."""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

__all__ = ["EXCHANGE", "NOBODY", "NOREPLACE", "as_user", "error_of", "in_process", "rename_with"]

NOREPLACE = 1
EXCHANGE = 2
NOBODY = 65534
_AT_FDCWD = -100
#: One number has two names on Linux, ENOTSUP and EOPNOTSUPP; the second is what manual pages say.
_names = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP"}
_libc = ctypes.CDLL(None, use_errno=True)


def rename_with(flags: int, old: Path, new: Path) -> None:
    """renameat2(2)."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(old))


def error_of(function: Callable[..., object], *arguments: object) -> str:
    """The symbolic errno of a call that fails, "" of one that does not."""
    try:
        function(*arguments)
    except OSError as error:
        return _names.get(error.errno or 0, str(error.errno))
    return ""


def as_user(user: int, function: Callable[[], object]) -> str:
    """`error_of` the function, run in a child as another user and group, with no other groups."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            name = error_of(function)
            code = getattr(errno, name) if name else 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code not in (255, -1), "the child failed otherwise than by an errno"
    return _names.get(code, str(code)) if code else ""


def in_process(source: str, *arguments: object) -> subprocess.Popen[str]:
    """Another Python process running `source` with arguments, its output on a pipe: a peer that may fault or
    hang.
    """
    return subprocess.Popen(
        [sys.executable, "-c", source, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
