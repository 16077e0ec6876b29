"""Room: the cache's limit, and which blocks leave when more is needed.

It does not know why room is needed, and it fetches nothing.

The limit is what clean blocks, the index and staged files take together, in
allocated bytes. Staged bytes are nobody's to refuse (a file larger than the limit
could not be written), so clean blocks yield to them, down to none: reads then go
past the cache. A disk that is full before the limit is reached is a smaller limit.

What gives is the queue that `core.admission` names; in it the file used longest ago,
and of its blocks those that came first. Open files are no exception. A small file that
nobody uses goes whole. Blocks that were fetched ahead and not read yet go last.

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
from typing import Final

import trio

from volfs import crash
from volfs.cache.blocks import punch
from volfs.cache.cachefile import CacheFile
from volfs.cache.index import Row
from volfs.cache.overhead import Overhead
from volfs.cache.queues import WHOLE_BYTES
from volfs.cache.shelf import Shelf
from volfs.core.admission import Queue
from volfs.core.spans import BLOCK_BYTES, runs
from volfs.telemetry import get_logger

__all__ = ["DISK_FULL", "Room"]

log = get_logger(__name__)

#: Room is made in steps of this part of the limit, so that not each block costs a transaction: a quarter of
#: what guests share.
_STEP: Final = 128

_EVERYTHING: Final = 1 << 62

#: Nothing is kept for so long after the disk was full: a writer that waits for space comes first, and a full
#: disk is asked again this often, not at each read.
_PAUSE_S: Final = 1.0

#: The local disk, or our quota on it, has no space.
DISK_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


Victims = dict[int, tuple[CacheFile, list[int]]]


def _clock(file: CacheFile | Row) -> int:
    return file.clock if isinstance(file, Row) else file.used


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
        self._fitted_bytes = math.inf  # what the disk had space for when it was full last, or more since
        self._given_bytes = 0  # to a full disk
        self._tell()
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

    def _tell(self) -> int:
        """Say what the limit is now to those who decide what stays."""
        limit = self.limit_bytes
        self._fitted_bytes = max(self._fitted_bytes, self._shelf.used_bytes)
        self._shelf.queues.admission.limit_bytes = int(min(limit, self._fitted_bytes))
        return limit

    async def reserve(self, size: int) -> bool:
        """Hold room for `size` bytes, until the caller lowers `reserved` again; whether there is any."""
        if size > self._tell() or self._is_paused():
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
        given = self._given_bytes
        if self._evicting.locked():
            async with self._evicting:  # the other blocks of this moment find the disk full as well
                if self._given_bytes > given:
                    return
        if not await self._give_up(size):
            self._pause()

    async def _give_up(self, size: int) -> bool:
        if not self._shelf.used_bytes:
            return False
        self._fitted_bytes = self._shelf.used_bytes
        async with self._evicting:
            given = await self._evict(max(size, self._shelf.used_bytes // _STEP))
            self._given_bytes += given
            return given > 0

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
        victims: Victims = {}
        # What has been chosen is in nobody's hands: go through with it.
        with trio.CancelScope(shield=True):
            loaded: list[CacheFile] = []
            for spare in (True, False):  # what is ahead of its reader only if nothing else is there
                while goal > 0:
                    goal, unloaded = self._choose(goal, victims, spare)
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

    def _choose(self, goal: int, victims: Victims, spare: bool) -> tuple[int, CacheFile | None]:
        """Take victims up to the goal; what is left of it, and a file to load before going on."""
        queues = self._shelf.queues
        hot = sorted(self._shelf.hot.values(), key=_clock)
        with closing(self._cold(guests=True)) as cold_guests, closing(self._cold(guests=False)) as cold:
            guests: Iterator[CacheFile | Row] = merge(
                [file for file in hot if file.guest_cost], cold_guests, key=_clock
            )
            residents: Iterator[CacheFile | Row] = merge(
                [file for file in hot if file.resident_cost], cold, key=_clock
            )
            guest, resident = next(guests, None), next(residents, None)
            queues.oldest = queues.admission.clock if resident is None else _clock(resident)
            while goal > 0 and (guest is not None or resident is not None):
                queue = queues.admission.gives(
                    None if guest is None else _clock(guest),
                    None if resident is None else _clock(resident),
                    queues.resident_bytes,
                )
                file = guest if queue is Queue.GUESTS else resident
                assert file is not None
                if queue is Queue.RESIDENTS and guest is None and queues.admission.lives(_clock(file)):
                    queues.admission.overflow(queues.guest_bytes)
                freed, unloaded = self._take(file, queue, goal, victims, spare)
                if unloaded is not None:
                    return goal, unloaded
                goal -= freed
                if queue is Queue.GUESTS:
                    guest = next(guests, None)
                else:
                    resident = next(residents, None)
        return goal, None

    def _cold(self, *, guests: bool) -> Generator[Row]:
        shelf = self._shelf
        try:
            with closing(shelf.index.oldest(guests=guests)) as rows:
                for row in rows:
                    if row.id not in shelf.hot and row.id not in shelf.leaving:
                        yield row
        except sqlite3.Error as error:
            log.warning("the cache index cannot be read", error=str(error))

    def _take(
        self, file: CacheFile | Row, queue: Queue, goal: int, victims: Victims, spare: bool
    ) -> tuple[int, CacheFile | None]:
        """Take the file, or blocks of it that are in the queue; what that frees, or a file to load first."""
        shelf, queues = self._shelf, self._shelf.queues
        whole = not self._punches or file.cost <= max(goal, WHOLE_BYTES)
        if isinstance(file, Row):
            if not whole:
                return 0, shelf.warm(file)
            queues.left(file)
            shelf.discard(file.id, file.cost)
            return file.cost, None
        indivisible = not self._punches or file.whole_only
        mixed = bool(file.guest_cost and file.resident_cost) and not indivisible
        if not file.users and (whole or indivisible) and not mixed:
            if file.id not in shelf.hot or file.pins:
                return 0, None
            if spare and any(queues.is_ahead(file, number) for number in file.ahead):
                return 0, None
            shelf.doom(file)
            return file.cost, None
        if indivisible:
            return 0, None
        if file.present is None:
            return 0, file
        return self._take_blocks(file, queue, goal, victims, spare), None

    def _take_blocks(self, file: CacheFile, queue: Queue, goal: int, victims: Victims, spare: bool) -> int:
        present, guests, pins = file.present or {}, file.guests, file.pins
        pool = guests if queue is Queue.GUESTS else (number for number in present if number not in guests)
        is_ahead = self._shelf.queues.is_ahead
        free = (n for n in pool if n not in pins and not (spare and is_ahead(file, n)))
        numbers = list(islice(free, -(-goal // BLOCK_BYTES)))
        if not numbers:
            return 0
        for number in numbers:
            file.remove(number)
        file.leaving.update(numbers)
        if file.id not in victims:
            file.users += 1
            victims[file.id] = (file, [])
        victims[file.id][1].extend(numbers)
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
