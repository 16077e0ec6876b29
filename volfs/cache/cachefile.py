"""One cache file: a sparse local file with some blocks of one version, and which of them are present.

It reads, verifies, writes and punches local bytes. It decides neither what is
fetched (`fill`) nor what leaves (`evict`), and it does not know the index.

A block is verified against its checksum when it is first read after it was
loaded from the index, whenever its bytes may have come from the disk instead of
the page cache, and after anybody but us has changed the file.

A *sealed* file was handed out (`lease`): others may have it open for as long as they
like. Its bytes are never written nor punched again; all that happens to it is that its
name is removed. On the disk its mode says so, which a crash of the daemon survives.

*Concurrency:* all state belongs to the trio thread. Functions that run in
threads are in `blocks`; they get a descriptor and bytes.
Blocks under such a read are pinned, so that they are not punched meanwhile; a
block that is being punched is in `leaving`, so that it is not written meanwhile.

*Invariants* (once loaded): unsaved and unverified blocks are present; lost and
leaving ones are not. The descriptor of a sealed file cannot write.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from volfs.cache.blocks import PAGE, sums_of
from volfs.core.spans import BLOCK_BYTES, Extent, block_count, block_extent, blocks_of, cost_bytes
from volfs.core.versions import Version

__all__ = ["CacheFile", "is_sealed", "remove"]

#: The largest request of the kernel, and the rest of the blocks at its two ends. Every read that the page
#: cache answers lands here and is replied from here: a fresh buffer costs as much as the copy itself.
_SCRATCH: Final = memoryview(bytearray((1 << 20) + 2 * BLOCK_BYTES))

#: Of a local file that we write, and of a sealed one: who reads it shall not write it by accident.
_MODE: Final = 0o600
_MODE_SEALED: Final = 0o400

_libc = ctypes.CDLL(None, use_errno=True)

#: cachestat(2), Linux 6.5; the number is the same on all architectures.
_SYS_CACHESTAT: Final = 451


class _Range(ctypes.Structure):
    _fields_ = (("offset", ctypes.c_uint64), ("size", ctypes.c_uint64))


class _CacheStat(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_uint64) for name in ("cached", "dirty", "writeback", "evicted", "evicted_lately")
    )


class CacheFile:
    """See the module. `present` maps blocks to checksums, oldest first; None until it is loaded."""

    __slots__ = (
        "_direct_in",
        "_direct_out",
        "ahead",
        "changing",
        "cost",
        "doomed",
        "extra",
        "fd",
        "guest_cost",
        "guests",
        "id",
        "is_guest",
        "leased",
        "leaving",
        "lost",
        "made",
        "moves_in",
        "nowait",
        "passed",
        "path",
        "pins",
        "present",
        "resident_cost",
        "rewrite",
        "saved",
        "sealed",
        "size",
        "stamp_ns",
        "unsaved",
        "unverified",
        "used",
        "users",
        "version",
        "whole_only",
    )

    def __init__(self, id: int, version: Version, size: int, path: str, *, saved: bool) -> None:  # noqa: A002
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
        self.guests: dict[int, None] = {}  # present, and the next to leave, in the order in which they came
        self.is_guest = False  # most of its blocks are
        self.guest_cost = 0  # what they take of `cost` ...
        self.resident_cost = 0  # ... and the others
        self.moves_in = False  # blocks that come now come to stay, though there is no place
        self.ahead: dict[int, int] = {}  # fetched ahead and not read yet -> the clock then, oldest first
        self.passed = 0  # bytes read since somebody came, or since a pass over all of it
        self.users = 0
        self.used = 0  # the clock of `Queues` after the last read
        self.cost = 0  # what the cache is charged for it
        self.extra = 0  # allocated beyond what its blocks explain
        self.doomed = False  # nobody will ask for this version again: goes when the last user does
        self.fd = self._direct_in = self._direct_out = -1
        self.nowait = True
        self.changing = 0  # writes and punches under way
        self.stamp_ns = 0  # mtime after the last change that we made
        self.leased = False  # one of its users is a lease
        self.sealed = saved and is_sealed(path)
        self.whole_only = self.sealed  # no block of it leaves alone

    # -- which blocks are present ------------------------------------------------

    def take(self, blocks: dict[int, int]) -> None:
        """What the index says is present. It is believed block by block, after a look at the bytes."""
        last = block_count(self.size)
        self.present = {number: sum_ for number, sum_ in blocks.items() if 0 <= number < last}
        self.unverified = set(self.present)
        if self.is_guest:
            self.guests = dict.fromkeys(self.present)

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
        self.guests.pop(number, None)

    def lose(self) -> None:
        """The local file is gone, and all blocks with it."""
        self.present = {}
        self.unverified.clear()
        self.unsaved.clear()
        self.guests.clear()
        self.extra = 0
        self.made = self.sealed = False  # whoever has the old one open keeps its bytes
        self.rewrite = True

    def worth(self) -> int:
        """The bytes that it takes on the disk, at most."""
        if self.present is None:
            return self.cost
        last = block_count(self.size) - 1
        has_last = last in self.present or last in self.leaving
        return cost_bytes(len(self.present) + len(self.leaving), has_last, self.size) + self.extra

    def guest_worth(self) -> int:
        """The part of it that its guests take; says anew whether they are most of its blocks."""
        if self.present is None:
            return self.cost if self.is_guest else 0
        self.is_guest = 2 * len(self.guests) > len(self.present)
        part = len(self.guests) * BLOCK_BYTES
        return self.cost if len(self.guests) == len(self.present) else min(part, self.cost)

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
        flags = (os.O_RDONLY if self.sealed else os.O_RDWR) | os.O_NOFOLLOW | os.O_CLOEXEC
        if create and not self.sealed:
            flags |= os.O_CREAT
            if not self.made:
                remove(self.path)  # left by a daemon that was killed
                flags |= os.O_EXCL
        fd = os.open(self.path, flags, _MODE)
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
        if self.present and self.stamp_ns and st.st_mtime_ns != self.stamp_ns:
            self.unverified.update(self.present)  # somebody has written into our file while it was closed
        self.stamp_ns = st.st_mtime_ns

    def seal(self) -> None:
        """The file, which is open and complete, is handed out. OSError: it is not."""
        opened = os.fstat(self.fd)
        fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_ino != opened.st_ino:
                raise OSError(errno.ESTALE, "somebody has replaced our file")
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            os.fchmod(fd, _MODE_SEALED)
            # The number stays: threads may read by it at this moment.
            os.dup2(fd, self.fd, inheritable=False)
        finally:
            os.close(fd)
        self.sealed = self.whole_only = True

    def close(self) -> None:
        for fd in (self.fd, self._direct_in, self._direct_out):
            if fd >= 0:
                os.close(fd)
        self.fd = self._direct_in = self._direct_out = -1

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
        self.look()
        if self.unverified and not self.unverified.isdisjoint(blocks):
            return self._peek_and_verify(extent, blocks)
        if extent.size > len(_SCRATCH) or not self._read_nowait(extent, blocks):
            return None
        return _SCRATCH[: extent.size]

    def look(self) -> None:
        """Whether somebody has written into our file, which is open: then nothing of it is believed."""
        if not self.changing:
            stamp_ns = os.fstat(self.fd).st_mtime_ns
            if stamp_ns != self.stamp_ns:
                self.unverified.update(self.present or ())
                self.stamp_ns = stamp_ns

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

    def is_resident(self, blocks: range) -> bool:
        """Whether memory has all of these present blocks, as far as the kernel tells."""
        if self.fd < 0:
            return False
        cached = self._cached_bytes(blocks)
        return self.unverified.isdisjoint(blocks) if cached is None else cached >= self._size_of(blocks)

    def direct_in(self, blocks: range) -> int:
        """The descriptor to read these blocks with, from the disk and ahead of their reader.

        Where memory has none of them, one that goes past the page cache (O_DIRECT): the kernel is about to
        have the bytes as pages of the mount, and twice would cost a copy and the memory.
        """
        if self._cached_bytes(blocks) != 0:
            return self.fd
        if self._direct_in < 0:
            self._direct_in = self._open_direct(os.O_RDONLY)
        return self._direct_in if self._direct_in >= 0 else self.fd

    def direct_out(self) -> int:
        """The same for writing what is missing; the file is open. -1 where there is no such thing."""
        if self._direct_out < 0:
            self._direct_out = self._open_direct(os.O_WRONLY)
        return self._direct_out

    def _open_direct(self, flags: int) -> int:
        try:
            return os.open(f"/proc/self/fd/{self.fd}", flags | os.O_DIRECT | os.O_CLOEXEC)
        except OSError:
            return -1

    def _cached_bytes(self, blocks: range) -> int | None:
        """What the page cache has of the blocks, in whole pages; None: this kernel does not tell."""
        found = _CacheStat()
        where = _Range(*block_extent(blocks, self.size))
        if _libc.syscall(_SYS_CACHESTAT, self.fd, ctypes.byref(where), ctypes.byref(found), 0) != 0:
            return None
        return int(found.cached) * PAGE

    def _size_of(self, blocks: range) -> int:
        return block_extent(blocks, self.size).size

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


def remove(path: str) -> None:
    """Take a local file away, if it is there."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def is_sealed(path: str) -> bool:
    """Whether the local file is one that was sealed; no error if there is none."""
    try:
        return not os.stat(path, follow_symlinks=False).st_mode & stat.S_IWUSR
    except OSError:
        return False
