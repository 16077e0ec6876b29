"""What the cache has of single versions: counted, checked against its checksums, brought in whole, dropped.

It decides neither which versions these are (`fs.warming`, `fs.handoff`) nor what
leaves when room is needed (`evict`).

*Concurrency:* the trio thread. A cache file that is looked at is held, its blocks
are pinned while a thread reads them, and its place in the order of eviction stays.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import trio

from volfs.cache.blocks import read_blocks
from volfs.cache.cachefile import CacheFile
from volfs.cache.evict import Room
from volfs.cache.reading import CachedFile
from volfs.cache.shelf import Shelf
from volfs.core.spans import BLOCK_BYTES, Extent, block_count, block_extent, cost_bytes, runs
from volfs.core.versions import Version
from volfs.errors import StoreError, VersionChanged
from volfs.store.base import Reader

__all__ = ["Checked", "Contents", "Evicted", "Held"]

#: Bytes of one read in a thread: it has them in about a millisecond.
_READ_BYTES: Final = 2 << 20

#: So many of them at once: the disk is busy while a core computes checksums.
_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True)
class Held:
    """How many bytes of a version are in the cache."""

    size: int
    cached_bytes: int

    @property
    def complete(self) -> bool:
        return self.cached_bytes == self.size


@dataclass(frozen=True, slots=True)
class Checked:
    """`damaged_bytes`: present, and not what their checksum says. `next_offset`: where to go on; -1: done."""

    damaged_bytes: int
    next_offset: int


@dataclass(frozen=True, slots=True)
class Evicted:
    """Bytes of the local disk that a version gave back, and bytes of it that are in use."""

    freed_bytes: int
    kept_bytes: int


class Contents:
    """See the module."""

    def __init__(self, shelf: Shelf, room: Room) -> None:
        self._shelf = shelf
        self._room = room

    async def of(self, version: Version, size: int) -> Held:
        """What is present, by the index. Nothing is read."""
        file = self._shelf.find(version, size)
        self._shelf.hold(file)
        try:
            await self._shelf.load(file)
            return Held(size, _bytes_of(file.present or (), size))
        finally:
            self._shelf.release(file)

    async def check(self, version: Version, size: int, offset: int, until_s: float) -> Checked:
        """Compare present blocks from `offset` on with their checksums until a time of trio's clock.

        At least one run of blocks is. Nothing is changed: what is damaged is dropped when it is read (R4).
        """
        file = self._shelf.find(version, size)
        self._shelf.hold(file)
        try:
            await self._shelf.load(file)
            first = offset // BLOCK_BYTES
            present = sorted(number for number in file.present or () if number >= first)
            bad: list[int] = []
            for run in runs(present, _READ_BYTES // BLOCK_BYTES):
                bad += await self._damaged(file, run)
                if run.stop <= present[-1] and trio.current_time() >= until_s:
                    return Checked(_bytes_of(bad, size), run.stop * BLOCK_BYTES)
            return Checked(_bytes_of(bad, size), -1)
        finally:
            self._shelf.release(file)

    async def prove(self, file: CacheFile, until_s: float) -> bool:
        """Verify what of the file is unverified; False: the time of trio's clock came first.

        What is damaged is dropped; whether the file is still complete is to be seen after.
        """
        if not file.present or not self._shelf.open(file):
            return True
        if file.size <= _READ_BYTES and file.peek(Extent(0, file.size)) is not None:
            return True
        while True:
            file.look()
            left = list(runs(sorted(file.unverified), _READ_BYTES // BLOCK_BYTES))
            if not left:
                return True
            async with trio.open_nursery() as nursery:
                for run in left[:_AT_ONCE]:
                    nursery.start_soon(self._prove, file, run)
            if file.unverified and trio.current_time() >= until_s:
                return False

    async def _prove(self, file: CacheFile, run: range) -> None:
        bad = await self._damaged(file, run)
        file.unverified.difference_update(run)
        if bad:
            self._shelf.reject(file, bad)
            if file.sealed:
                self._shelf.doom(file)

    async def _damaged(self, file: CacheFile, run: range) -> list[int]:
        """The blocks that are present and not what their checksums say."""
        if not self._shelf.open(file):
            return [number for number in run if file.has((number,))]
        file.pin(run)
        try:
            _, sums = await self._shelf.thread(read_blocks, file.fd, block_extent(run, file.size))
        except OSError:
            sums = [-1] * len(run)
        finally:
            file.unpin(run)
        present = file.present or {}
        return [n for n, sum_ in zip(run, sums, strict=True) if n in present and present[n] != sum_]

    async def bring(
        self, cached: CachedFile, reader: Reader | None, is_current: Callable[[], bool], until_s: float
    ) -> None:
        """Fetch what is missing of a version until a time of trio's clock.

        `is_current`: whether the caller is still attached to it, and `reader` open. StoreError as the store
        raised it; with ENOSPC where the version is not kept, because it does not fit or the disk fails.
        VersionChanged if there is another one now, or its bytes cannot be had.
        """
        file = cached.local
        await self._shelf.load(file)
        if cost_bytes(block_count(file.size), bool(file.size), file.size) > self._room.limit_bytes:
            raise StoreError("the file is larger than the cache", errno=errno.ENOSPC)
        if self._shelf.queues.invite(file):
            self._shelf.mark(file)
        while not cached.complete:
            if file.sealed:
                self._shelf.doom(file)
            if reader is None or file.doomed or not is_current():
                raise VersionChanged("the bytes of this version cannot be had")
            present = len(file.present or ())
            await cached.fetch_rest(reader, until_s)
            if trio.current_time() >= until_s:
                return
            if len(file.present or ()) <= present and is_current():
                await self._ask_why(cached, reader, present)
        self._shelf.touch(file, file.size)  # used now, and later than what was brought before it

    async def _ask_why(self, cached: CachedFile, reader: Reader, present: int) -> None:
        """Nothing more is present: fetch a block for somebody who waits for it, and see why."""
        file = cached.local
        first = next(n for n in range(block_count(cached.size)) if not file.has((n,)))
        await cached.read(first * BLOCK_BYTES, 1, reader)
        await cached.landed()
        if len(file.present or ()) <= present and not file.doomed:
            raise StoreError("the cache has no room, or its disk fails", errno=errno.ENOSPC)

    async def evict(self, version: Version, size: int) -> Evicted:
        """Drop a version from memory, index and disk, unless somebody uses it."""
        file = self._shelf.find(version, size)
        self._shelf.hold(file)
        freed = kept = 0
        try:
            await self._shelf.load(file)
            if file.users > 1:
                kept = file.cost
            else:
                freed = file.cost
                self._shelf.doom(file)
        finally:
            self._shelf.release(file)
        if freed:
            await self._room.flush()
        return Evicted(freed, kept)


def _bytes_of(numbers: Collection[int], size: int) -> int:
    """The bytes of so many blocks, of which the last of the file may be short."""
    last = block_count(size) - 1
    short = block_count(size) * BLOCK_BYTES - size if last in numbers else 0
    return len(numbers) * BLOCK_BYTES - short
