"""Making what was written survive a power cut; on a volfs mount, making it known to other nodes."""

from __future__ import annotations

import errno
import os
from typing import Final

__all__ = ["sync_directory", "sync_file"]

#: How file systems say that a directory cannot be synced; they promise no more than they do anyway.
_NOT_SYNCED: Final = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF})


def sync_file(path: str | os.PathLike[str]) -> None:
    """The content of a file. OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """The names in a directory. OSError, but where directories cannot be synced."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in _NOT_SYNCED:
            raise
    finally:
        os.close(fd)
