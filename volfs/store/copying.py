"""Copying the bytes of one open file into another, as cheaply as the file systems allow.

Blocking; called from worker threads with descriptors of their own.
"""

from __future__ import annotations

import errno
import fcntl
import os

from volfs import crash
from volfs.store.base import Observer

__all__ = ["clone_range", "copy_bytes", "copy_extent", "read_full", "write_all"]

_FICLONE = 0x40049409

#: One read and one write of this size cost far more than the calls themselves; larger only holds memory.
_PIECE = 1 << 20


def clone_range(source: int, target: int, size: int) -> None:
    """Copy the first `size` bytes of `source` into the empty file `target`, as cheaply as can be.

    A reflink where the file system has them, else copy_file_range in the
    kernel, else read and write. `source` may be shorter: then all of it.
    """
    if size == 0:
        return
    if size >= os.fstat(source).st_size:
        try:
            fcntl.ioctl(target, _FICLONE, source)
        except OSError:  # another file system, or one without reflinks: copy
            pass
        else:
            return
    done = 0
    try:
        while done < size:
            n = os.copy_file_range(source, target, min(size - done, 64 << 20), done, done)
            if n == 0:
                return
            done += n
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
    while done < size:
        piece = os.pread(source, min(size - done, 1 << 20), done)
        if not piece:
            return
        write_all(target, memoryview(piece), done)
        done += len(piece)


def write_all(fd: int, data: memoryview, offset: int) -> None:
    """pwrite(2) until all is written; a short write is not an error, the next call tells why."""
    while data:
        n = os.pwrite(fd, data, offset)
        data = data[n:]
        offset += n


def read_full(fd: int, buffer: memoryview, offset: int) -> int:
    """preadv(2) until the buffer is full or the file ends; how much was read."""
    done = 0
    while done < len(buffer):
        n = os.preadv(fd, [buffer[done:]], offset + done)
        if n == 0:
            break
        done += n
    return done


def copy_extent(
    source: int, target: int, offset: int, size: int, buffer: memoryview, observe: Observer | None
) -> None:
    """Copy so many bytes at `offset` of `source` to the same place in `target`, a buffer at a time."""
    end = offset + size
    while offset < end:
        piece = buffer[: min(len(buffer), end - offset)]
        if read_full(source, piece, offset) < len(piece):
            raise OSError(errno.EIO, "a staged file became shorter while it was copied")
        if observe is not None:
            observe(offset, piece)
        write_all(target, piece, offset)
        crash.point("copy.piece")
        offset += len(piece)


def copy_bytes(source: int, target: int, observe: Observer | None) -> int:
    """Copy all bytes of `source` over the start of `target`; returns how many."""
    size = os.fstat(source).st_size
    copy_extent(source, target, 0, size, memoryview(bytearray(min(_PIECE, max(size, 1)))), observe)
    return size
