"""One cache file: a sparse local file with some blocks of one version, and which of them are present.

It reads, verifies, writes and punches local bytes. It decides neither what is
fetched (`fill`) nor what leaves (`evict`), and it does not know the index.

A block is verified against its checksum when it is first read after it was
loaded from the index, whenever its bytes may have come from the disk instead of
the page cache, and after anybody but us has changed the file.

*Concurrency:* all state belongs to the trio thread. Functions that run in
threads (`read_blocks`, `write_blocks`, `punch`) get a descriptor and bytes.
Blocks under such a read are pinned, so that they are not punched meanwhile; a
block that is being punched is in `leaving`, so that it is not written meanwhile.

*Invariants* (once loaded): unsaved and unverified blocks are present; lost and
leaving ones are not.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import xxhash

from volfs.core.spans import BLOCK_BYTES, Extent, block_count, block_extent, blocks_of, cost_bytes
from volfs.core.versions import Version

__all__ = ["CacheFile", "punch", "read_blocks", "sums_of", "write_blocks"]

#: The largest request of the kernel, and the rest of the blocks at its two ends. Every read that the page
#: cache answers lands here and is replied from here: a fresh buffer costs as much as the copy itself.
_SCRATCH: Final = memoryview(bytearray((1 << 20) + 2 * BLOCK_BYTES))

_PUNCH: Final = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE

_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class CacheFile:
    """See the module. `present` maps blocks to checksums, oldest first; None until it is loaded."""

    __slots__ = (
        "changing",
        "cost",
        "doomed",
        "extra",
        "fd",
        "id",
        "leaving",
        "lost",
        "made",
        "nowait",
        "path",
        "pins",
        "present",
        "rewrite",
        "saved",
        "size",
        "stamp_ns",
        "unsaved",
        "unverified",
        "used",
        "users",
        "version",
    )

    def __init__(self, id: int, version: Version, size: int, path: Path, *, saved: bool) -> None:  # noqa: A002
        self.id = id
        self.version = version
        self.size = size
        self.path = path
        self.saved = saved  # the index has a row of it
        self.made = saved  # the local file exists, and is ours
        self.present: dict[int, int] | None = None if saved else {}
        self.unverified: set[int] = set()
        self.unsaved: dict[int, int] = {}  # present, and the index does not know it
        self.lost: set[int] = set()  # not present, and the index does not know it
        self.rewrite = False  # what the index has of it is to be replaced by what is present
        self.leaving: set[int] = set()  # being punched
        self.pins: dict[int, int] = {}  # block -> reads under way in threads
        self.users = 0
        self.used = 0
        self.cost = 0  # what the cache is charged for it
        self.extra = 0  # allocated beyond what its blocks explain
        self.doomed = False  # nobody will ask for this version again: goes when the last user does
        self.fd = -1
        self.nowait = True
        self.changing = 0  # writes and punches under way
        self.stamp_ns = 0  # mtime after the last change that we made

    # -- which blocks are present ------------------------------------------------

    def take(self, blocks: dict[int, int]) -> None:
        """What the index says is present. It is believed block by block, after a look at the bytes."""
        last = block_count(self.size)
        self.present = {number: sum_ for number, sum_ in blocks.items() if 0 <= number < last}
        self.unverified = set(self.present)

    def has(self, blocks: Iterable[int]) -> bool:
        return self.present is not None and all(number in self.present for number in blocks)

    def add(self, blocks: range, sums: Iterable[int]) -> None:
        """The blocks have been written."""
        assert self.present is not None
        for number, sum_ in zip(blocks, sums, strict=True):
            self.present[number] = self.unsaved[number] = sum_
            self.lost.discard(number)
            self.unverified.discard(number)

    def remove(self, number: int) -> None:
        """The block is not to be read any more; its bytes may still be on the disk."""
        assert self.present is not None
        del self.present[number]
        self.unverified.discard(number)
        # Also where the index has not heard of it: a batch that tells it may be on its way.
        self.unsaved.pop(number, None)
        self.lost.add(number)

    def worth(self) -> int:
        """The bytes that it takes on the disk, at most."""
        if self.present is None:
            return self.cost
        last = block_count(self.size) - 1
        has_last = last in self.present or last in self.leaving
        return cost_bytes(len(self.present) + len(self.leaving), has_last, self.size) + self.extra

    def pin(self, blocks: range) -> None:
        for number in blocks:
            self.pins[number] = self.pins.get(number, 0) + 1

    def unpin(self, blocks: range) -> None:
        for number in blocks:
            if self.pins[number] == 1:
                del self.pins[number]
            else:
                self.pins[number] -= 1

    # -- the local file ----------------------------------------------------------

    def open(self, *, create: bool) -> None:
        """Open the local file unless it is open. OSError where it is gone or cannot be made."""
        if self.fd >= 0:
            return
        flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT
            if not self.made:
                self.path.unlink(missing_ok=True)  # left by a daemon that was killed
                flags |= os.O_EXCL
        fd = os.open(self.path, flags, 0o600)
        self.made = True
        try:
            st = os.fstat(fd)
            if st.st_size < self.size:
                # In one step, so that XFS does not allocate in advance behind each block.
                os.ftruncate(fd, self.size)
                st = os.fstat(fd)
            # Without this the kernel reads ahead, and a later block is in the page cache unverified.
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        self.stamp_ns = st.st_mtime_ns

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def changed(self, stamp_ns: int) -> None:
        """A write or punch that `changing` counted is done; its thread saw this mtime after it."""
        self.changing -= 1
        self.stamp_ns = max(self.stamp_ns, stamp_ns)

    def peek(self, extent: Extent) -> memoryview | None:
        """The bytes, if memory has all of them; else None. Valid until the next await.

        This is the path of a hit: no thread, no lock, no copy but the kernel's.
        """
        present = self.present
        if not present or self.fd < 0 or not self.nowait:
            return None
        blocks = blocks_of(extent)
        for number in blocks:
            if number not in present:
                return None
        if not self.changing:
            stamp_ns = os.fstat(self.fd).st_mtime_ns
            if stamp_ns != self.stamp_ns:  # somebody has written into our file
                self.unverified.update(present)
                self.stamp_ns = stamp_ns
        if self.unverified and not self.unverified.isdisjoint(blocks):
            return self._peek_and_verify(extent, blocks)
        if extent.size > len(_SCRATCH) or not self._read_nowait(extent, blocks):
            return None
        return _SCRATCH[: extent.size]

    def _peek_and_verify(self, extent: Extent, blocks: range) -> memoryview | None:
        assert self.present is not None
        whole = block_extent(blocks, self.size)
        if whole.size > len(_SCRATCH) or not self._read_nowait(whole, blocks):
            return None
        sums = sums_of(_SCRATCH[: whole.size])
        for number, sum_ in zip(blocks, sums, strict=True):
            if self.present[number] != sum_:
                return None  # the slow path looks again, and drops it
        self.unverified.difference_update(blocks)
        start = extent.offset - whole.offset
        return _SCRATCH[start : start + extent.size]

    def _read_nowait(self, extent: Extent, blocks: range) -> bool:
        try:
            if os.preadv(self.fd, [_SCRATCH[: extent.size]], extent.offset, os.RWF_NOWAIT) == extent.size:
                return True
        except BlockingIOError:
            pass
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                self.nowait = False  # tmpfs: never from a disk either
                return False
        # The attempt makes the kernel read from the disk, and the next one finds the pages.
        self.unverified.update(blocks)
        return False


def sums_of(data: memoryview) -> list[int]:
    """The checksum of each block."""
    return [xxhash.xxh3_64_intdigest(data[i : i + BLOCK_BYTES]) for i in range(0, len(data), BLOCK_BYTES)]


def read_blocks(fd: int, extent: Extent) -> tuple[bytearray, list[int]]:
    """The bytes of whole blocks, and the checksum of each. What is missing is zeros."""
    data = bytearray(extent.size)
    view = memoryview(data)
    done = 0
    while done < extent.size:
        got = os.preadv(fd, [view[done:]], extent.offset + done)
        if not got:
            break  # somebody has cut our file: the checksum will not match
        done += got
    return data, sums_of(view)


def write_blocks(fd: int, offset: int, data: memoryview) -> tuple[list[int], int]:
    """Write whole blocks; their checksums, and the file's mtime after."""
    done = 0
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
