"""A finished directory takes the place of another, or of none, in one step.

*Invariants:* a reader finds the old directory or the new one. Where the file system cannot exchange two
names in one step there is a moment with neither; if the second of the two steps fails, the old one is back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from typing import Final

__all__ = ["publish"]

_AT_FDCWD: Final = -100
_RENAME_NOREPLACE: Final = 1
_RENAME_EXCHANGE: Final = 2

#: How a kernel, a C library or a file system says that it cannot.
_CANNOT: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})


def publish(made: str, target: str, *, replace: bool) -> None:
    """Give `made` the name `target`; both are in one directory. What had the name is removed if `replace`.

    Raises FileExistsError if it is not to be replaced.
    """
    if not replace:
        try:
            _rename(made, target, _RENAME_NOREPLACE)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            if os.path.lexists(target):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target) from error
            # Over a directory that came meanwhile it fails too, unless that is empty.
            os.rename(made, target)
    else:
        try:
            _rename(made, target, _RENAME_EXCHANGE)
        except FileNotFoundError:
            os.rename(made, target)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
            _in_two_steps(made, target)
        else:
            _remove(made)
    fd = os.open(os.path.dirname(target) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _in_two_steps(made: str, target: str) -> None:
    # A name that no sweep takes: killed between the two, this is the export that there is.
    old = f"{made}-old"
    try:
        os.rename(target, old)
    except FileNotFoundError:
        os.rename(made, target)
        return
    try:
        os.rename(made, target)
    except BaseException:
        os.rename(old, target)
        raise
    _remove(old)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)  # the next export takes what is left
    else:
        os.unlink(path)


def _rename(old: str, new: str, flags: int) -> None:
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
    if call(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags)):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), old, None, new)
