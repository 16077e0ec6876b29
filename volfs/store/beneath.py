"""System calls that resolve a path beneath a directory and never through a symlink.

openat2(2) with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS resolves a whole path in
one call and cannot be raced out of the tree, which a check of joined paths can.
Also renameat2, which Python's `os` lacks.
Blocking; called from threads or, on local file systems, from the trio thread.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

__all__ = ["BENEATH_PATH_MAX", "open_beneath", "open_directory", "renameat2", "split"]

_SYS_OPENAT2 = 437  # the same on every architecture: allotted after the tables were unified
_RESOLVE = 0x02 | 0x04 | 0x08  # NO_MAGICLINKS | NO_SYMLINKS | BENEATH

#: The kernel refuses longer paths (PATH_MAX is 4096 with the final NUL); longer ones are walked in pieces.
BENEATH_PATH_MAX = 4095

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.argtypes = [ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t]
_syscall.restype = ctypes.c_long
_renameat2 = _libc.renameat2
_renameat2.argtypes = [ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint]


def _fail(path: bytes) -> OSError:
    number = ctypes.get_errno()
    if number == errno.ENOSYS:
        return OSError(errno.ENOSYS, "volfs needs openat2: Linux 5.6 or newer")
    # EXDEV and ELOOP are how openat2 says that the path would leave the tree or pass a symlink.
    if number in (errno.EXDEV, errno.ELOOP):
        number = errno.ENOTDIR if number == errno.ELOOP else errno.EACCES
    return OSError(number, os.strerror(number), os.fsdecode(path))


def open_beneath(root: int, path: bytes, flags: int, mode: int = 0) -> int:
    """Open `path` beneath the directory descriptor `root`; OSError with the true errno."""
    if not path:
        return os.open(b".", flags | os.O_CLOEXEC, dir_fd=root)
    if len(path) > BENEATH_PATH_MAX:
        cut = path.rindex(b"/", 0, BENEATH_PATH_MAX)
        above = open_beneath(root, path[:cut], os.O_PATH | os.O_DIRECTORY)
        try:
            return open_beneath(above, path[cut + 1 :], flags, mode)
        finally:
            os.close(above)
    how = struct.pack("<QQQ", flags | os.O_CLOEXEC, mode, _RESOLVE)
    while True:
        fd = _syscall(_SYS_OPENAT2, root, path, how, len(how))
        if fd >= 0:
            return int(fd)
        # EAGAIN: a rename raced the resolution and the kernel could not tell whether it stayed beneath.
        if ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
            raise _fail(path)


def open_directory(root: int, path: bytes) -> int:
    """An O_PATH descriptor of a directory, to name its children with `dir_fd`."""
    return open_beneath(root, path, os.O_PATH | os.O_DIRECTORY)


def split(path: bytes) -> tuple[bytes, bytes]:
    """A path as (its directory, its last name)."""
    directory, _, name = path.rpartition(b"/")
    return directory, name


def renameat2(old_dir: int, old: bytes, new_dir: int, new: bytes, flags: int) -> None:
    """renameat2(2); EINVAL where the file system does not know a flag."""
    if _renameat2(old_dir, old, new_dir, new, flags) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fsdecode(old))
