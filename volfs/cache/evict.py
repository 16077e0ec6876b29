"""Room: the cache's limit, and which blocks leave when more is needed.

It does not know why room is needed, and it fetches nothing.

The limit is what clean blocks, the index and staged files take together, in
allocated bytes. Staged bytes are nobody's to refuse (a file larger than the limit
could not be written), so clean blocks yield to them, down to none: reads then go
past the cache. A disk that is full before the limit is reached is a smaller limit.

The file used longest ago gives blocks first, and of its blocks those that came
first; open files are no exception. A small file that nobody uses goes whole, and so does a
file that others may have open (`CacheFile.whole_only`), once no lease holds it.

*Concurrency:* the trio thread. `_evicting` is held from the choice of victims
until their space is free; taken before the shelf's own locks.

*Invariants:* after a `reserve` that said yes, what the shelf uses and the room has
reserved is at most `limit_bytes` of that moment. Blocks that are pinned stay.
"""

from __future__ import annotations

import errno
import math
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final

import trio

from volfs import crash
from volfs.cache.cachefile import CacheFile, punch
from volfs.cache.index import Row
from volfs.cache.overhead import Overhead
from volfs.cache.shelf import Shelf
from volfs.core.spans import BLOCK_BYTES, runs
from volfs.telemetry import get_logger

__all__ = ["DISK_FULL", "Room"]

log = get_logger(__name__)

#: Room is made in steps of this part of the limit, so that not each block costs a transaction.
_STEP: Final = 32

#: Up to this size an unused file goes whole: finding out what it has costs more than it saves.
_WHOLE_BYTES: Final = 8 << 20

_EVERYTHING: Final = 1 << 62

#: Nothing is kept for so long after the disk was full: a writer that waits for space comes first, and a full
#: disk is asked again this often, not at each read.
_PAUSE_S: Final = 1.0

#: The local disk, or our quota on it, has no space.
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Room:
    """See the module. `staged`: allocated bytes of the staged files on this disk, as of now."""

    def __init__(
        self, shelf: Shelf, total_bytes: int, *, punches: bool, overhead: Overhead, staged: Callable[[], int]
    ) -> None:
        self._shelf = shelf
        self.total_bytes = total_bytes
        self.reserved = 0
        self.evicted_bytes = 0
        self._punches = punches
        self._overhead = overhead
        self._staged = staged
        self._evicting = trio.Lock()
        self._paused_until_s = -math.inf  # nothing is kept until then
        self._barren_until_s = -math.inf  # nothing could be given up just now

    @property
    def limit_bytes(self) -> int:
        """What clean blocks may take now."""
        return max(0, self.total_bytes - self._staged() - self._overhead.bytes)

    def _excess(self, size: int) -> int:
        """By how much `size` more bytes would be too many."""
        taken = self._shelf.used_bytes + self.reserved + self._staged() + self._overhead.bytes
        return taken + size - self.total_bytes

    async def reserve(self, size: int) -> bool:
        """Hold room for `size` bytes, until the caller lowers `reserved` again; whether there is any."""
        if size > self.limit_bytes or self._is_paused():
            return False
        await self._make_way(size)
        if self._excess(size) > 0:
            return False  # what is left is being read or written
        self.reserved += size
        return True

    async def shrink(self) -> None:
        """Staged files have grown, or the limit is a new one: give up what does not fit any more."""
        if self._shelf.used_bytes and self._excess(0) > 0 and trio.current_time() >= self._barren_until_s:
            await self._make_way(0)
            if self._excess(0) > 0:  # what is left is being read: do not look for more at every write
                self._barren_until_s = trio.current_time() + _PAUSE_S

    async def _make_way(self, size: int) -> None:
        if self._excess(size) > 0:
            async with self._evicting:
                excess = self._excess(size)
                if excess > 0:
                    await self._evict(max(excess, self.total_bytes // _STEP))

    async def yield_space(self, size: int) -> bool:
        """The disk is full for a writer: give up blocks for `size` bytes; whether there were any.

        Nothing is kept for a moment, so that the writer finds the space when it comes back.
        """
        self._pause()
        return await self._give_up(size)

    async def renew(self, size: int) -> None:
        """The disk is full for a block of `size` bytes: old blocks make way for the ones that come next."""
        if not await self._give_up(size):
            self._pause()

    async def _give_up(self, size: int) -> bool:
        if not self._shelf.used_bytes:
            return False
        async with self._evicting:
            return await self._evict(max(size, self._shelf.used_bytes // _STEP)) > 0

    def _pause(self) -> None:
        self._paused_until_s = trio.current_time() + _PAUSE_S

    def _is_paused(self) -> bool:
        return trio.current_time() < self._paused_until_s

    async def evict_all(self) -> None:
        """Drop every block that nobody reads at this moment."""
        async with self._evicting:
            await self._evict(_EVERYTHING)

    async def flush(self) -> None:
        """Tell the index what is new, and see how large that made it."""
        await self._shelf.flush()
        self._overhead.measure()

    async def _evict(self, wanted: int) -> int:
        """Free about `wanted` bytes, if there are so many; how many."""
        shelf = self._shelf
        goal = wanted - sum(shelf.leaving.values())
        victims: dict[int, tuple[CacheFile, list[int]]] = {}
        # What has been chosen is in nobody's hands: go through with it.
        with trio.CancelScope(shield=True):
            loaded: list[CacheFile] = []
            while True:
                goal, unloaded = self._choose(goal, victims)
                if unloaded is None:
                    break
                await shelf.load(unloaded)
                loaded.append(unloaded)
            await self.flush()
            for file, numbers in victims.values():
                await self._punch(file, numbers)
            for file in loaded:
                shelf.settle(file)
        self.evicted_bytes += wanted - goal
        return wanted - goal

    def _choose(
        self, goal: int, victims: dict[int, tuple[CacheFile, list[int]]]
    ) -> tuple[int, CacheFile | None]:
        """Take victims up to the goal; what is left of it, and a file to load before going on."""
        shelf = self._shelf
        with closing(self._cold()) as cold:
            order: Iterator[CacheFile | Row] = merge(list(shelf.hot.values()), cold, key=attrgetter("used"))
            for file in order:
                if goal <= 0:
                    break
                whole = not self._punches or file.cost <= max(goal, _WHOLE_BYTES)
                if isinstance(file, Row):
                    if not whole:
                        return goal, shelf.warm(file)
                    shelf.discard(file.id, file.cost)
                    goal -= file.cost
                elif not file.users and (whole or file.whole_only):
                    if file.id in shelf.hot:
                        shelf.doom(file)
                        goal -= file.cost
                elif self._punches and file.id not in victims and not file.whole_only:
                    if file.present is None:
                        return goal, file
                    goal -= self._choose_blocks(file, goal, victims)
        return goal, None

    def _cold(self) -> Generator[Row]:
        shelf = self._shelf
        try:
            with closing(shelf.index.oldest()) as rows:
                for row in rows:
                    if row.id not in shelf.hot and row.id not in shelf.leaving:
                        yield row
        except sqlite3.Error as error:
            log.warning("the cache index cannot be read", error=str(error))

    def _choose_blocks(
        self, file: CacheFile, goal: int, victims: dict[int, tuple[CacheFile, list[int]]]
    ) -> int:
        assert file.present is not None
        free = (number for number in file.present if number not in file.pins)
        numbers = list(islice(free, -(-goal // BLOCK_BYTES)))
        if not numbers:
            return 0
        for number in numbers:
            file.remove(number)
        file.leaving.update(numbers)
        file.users += 1
        victims[file.id] = (file, numbers)
        self._shelf.mark(file)
        return len(numbers) * BLOCK_BYTES

    async def _punch(self, file: CacheFile, numbers: list[int]) -> None:
        shelf = self._shelf
        gaps = list(runs(sorted(numbers), len(numbers)))
        file.changing += 1
        stamp_ns = 0
        try:
            if shelf.open(file):
                stamp_ns = await shelf.thread(punch, file.fd, gaps)
                crash.point("evict.punched")
        except OSError as error:
            log.warning("a cache file keeps its space", id=file.id, error=str(error))
        finally:
            file.changed(stamp_ns)
            file.leaving.difference_update(numbers)
            shelf.recount(file)
            if not file.doomed:
                shelf.mark(file)
            shelf.release(file)
