"""Room: the cache's limit, and which blocks leave when more is needed.

It does not know why room is needed, and it fetches nothing.

The file used longest ago gives blocks first, and of its blocks those that came
first; open files are no exception. A small file that nobody uses goes whole.

*Concurrency:* the trio thread. `_evicting` is held from the choice of victims
until their space is free; taken before the shelf's own locks.

*Invariants:* after a `reserve` that said yes, `used_bytes + reserved` of the
shelf and the room is at most `limit_bytes`. Blocks that are pinned stay.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import Final

import trio

from volfs.cache.cachefile import CacheFile, punch
from volfs.cache.index import Row
from volfs.cache.shelf import Shelf
from volfs.core.spans import BLOCK_BYTES, runs
from volfs.telemetry import get_logger

__all__ = ["Room"]

log = get_logger(__name__)

#: Room is made in steps of this part of the limit, so that not each block costs a transaction.
_STEP: Final = 32

#: Up to this size an unused file goes whole: finding out what it has costs more than it saves.
_WHOLE_BYTES: Final = 8 << 20

_EVERYTHING: Final = 1 << 62


class Room:
    """See the module."""

    def __init__(self, shelf: Shelf, limit_bytes: int, *, punches: bool) -> None:
        self._shelf = shelf
        self.limit_bytes = limit_bytes
        self.reserved = 0
        self._punches = punches
        self._evicting = trio.Lock()

    def _excess(self, size: int) -> int:
        return self._shelf.used_bytes + self.reserved + size - self.limit_bytes

    async def reserve(self, size: int) -> bool:
        """Hold room for `size` bytes, until the caller lowers `reserved` again; whether there is any."""
        if size > self.limit_bytes:
            return False
        if self._excess(size) > 0:
            async with self._evicting:
                excess = self._excess(size)
                if excess > 0:
                    await self._evict(max(excess, self.limit_bytes // _STEP))
        if self._excess(size) > 0:
            return False  # what is left is being read or written
        self.reserved += size
        return True

    async def evict_all(self) -> None:
        """Drop every block that nobody reads at this moment."""
        async with self._evicting:
            await self._evict(_EVERYTHING)

    async def _evict(self, goal: int) -> None:
        """Free about `goal` bytes, if there are so many."""
        shelf = self._shelf
        goal -= sum(shelf.leaving.values())
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
            await shelf.flush()
            for file, numbers in victims.values():
                await self._punch(file, numbers)
            for file in loaded:
                shelf.settle(file)

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
                elif not file.users and whole:
                    if file.id in shelf.hot:
                        shelf.doom(file)
                        goal -= file.cost
                elif self._punches and file.id not in victims:
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
        except OSError as error:
            log.warning("a cache file keeps its space", id=file.id, error=str(error))
        finally:
            file.changed(stamp_ns)
            file.leaving.difference_update(numbers)
            shelf.recount(file)
            if not file.doomed:
                shelf.mark(file)
            shelf.release(file)
