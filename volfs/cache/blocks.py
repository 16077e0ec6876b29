"""Blocks of a local file: read, written and punched by threads, with their checksums.

Functions that get a descriptor and memory; they know no cache file.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from typing import Final

import xxhash

from volfs.core.spans import BLOCK_BYTES, Extent

__all__ = ["PAGE", "punch", "read_blocks", "read_direct", "read_into", "sums_of", "write_blocks"]

PAGE: Final = os.sysconf("SC_PAGE_SIZE")

_PUNCH: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def sums_of(data: memoryview) -> list[int]:
    """xxh3_64 of each block."""
    return [xxhash.xxh3_64_intdigest(data[i : i + BLOCK_BYTES]) for i in range(0, len(data), BLOCK_BYTES)]


def read_direct(direct: int, fd: int, buffer: memoryview, size: int, offset: int) -> list[int]:
    """As `read_into` of `size` bytes past the page cache, with memory up to the end of a page."""
    done = 0
    try:
        while done < size:
            got = os.preadv(direct, [buffer[done:]], offset + done)
            if not got:
                break
            done += got
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    if done < size:  # not with this offset or memory, or somebody has cut our file
        return read_into(fd, buffer[:size], offset)
    return sums_of(buffer[:size])


def read_into(fd: int, data: memoryview, offset: int) -> list[int]:
    """Fill `data` with whole blocks: the checksum of each. What is missing is zeros."""
    done = 0
    while done < len(data):
        got = os.preadv(fd, [data[done:]], offset + done)
        if not got:
            data[done:] = bytes(len(data) - done)  # somebody has cut our file: the checksum will not match
            break
        done += got
    return sums_of(data)


def read_blocks(fd: int, extent: Extent) -> tuple[bytearray, list[int]]:
    """The bytes of whole blocks, and the checksum of each. What is missing is zeros."""
    data = bytearray(extent.size)
    return data, read_into(fd, memoryview(data), extent.offset)


def write_blocks(fd: int, offset: int, data: memoryview, direct: int = -1) -> tuple[list[int], int]:
    """Write whole blocks; their checksums, and the file's mtime after.

    `direct`: a descriptor past the page cache, which saves most of the kernel's work; -1: through it.
    """
    done = 0
    if direct >= 0 and len(data) % PAGE == 0:
        try:
            while done < len(data):
                done += os.pwrite(direct, data[done:], offset + done)
        except OSError as error:
            if error.errno != errno.EINVAL:  # not with this offset or memory
                raise
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
    return sums_of(data), os.fstat(fd).st_mtime_ns


def punch(fd: int, gaps: Iterable[range]) -> int:
    """Give the space of runs of blocks back; the file's mtime after."""
    for gap in gaps:
        while _fallocate(fd, _PUNCH, gap.start * BLOCK_BYTES, len(gap) * BLOCK_BYTES) != 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
    return os.fstat(fd).st_mtime_ns
