"""Leases: cache files that others read by their path, with nobody of ours in between, for a bounded time.

It neither completes nor verifies a file (`contents`), nor says who may have one
(`fs.handoff`).

A lease keeps a file from leaving, so that its path can be opened. Whoever has
opened it needs no lease any more: a file that was handed out is never changed, only
its name is removed. A client that died holds a file no longer than one that forgot.

*Concurrency:* the trio thread; `run` ends leases that are over.

*Invariants:* leases are ordered by their end. All of them together hold at most
half of what the cache may take, as of when each was given.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import trio

from volfs.cache.cachefile import CacheFile
from volfs.cache.evict import Room
from volfs.cache.shelf import Shelf
from volfs.core.spans import block_count, cost_bytes

__all__ = ["Leases"]

#: Each takes about two kilobytes of memory, more where a file has many blocks.
_MOST: Final = 16_384


@dataclass(slots=True)
class _Lease:
    file: CacheFile
    cost: int
    until_s: float


class Leases:
    """See the module. `duration_s`: how long one lasts from the last time that it was asked for."""

    def __init__(self, shelf: Shelf, room: Room, duration_s: float) -> None:
        self._shelf = shelf
        self._room = room
        self._duration_s = duration_s
        self._leases: OrderedDict[int, _Lease] = (
            OrderedDict()
        )  # by the id of the file, whose version may change its name
        self._given = trio.Event()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._leases)

    def take(self, file: CacheFile) -> bool:
        """Hold the file from now on, or longer; False if no more can be held.

        With a new lease nothing of the file counts as verified: its next reader looks at no checksums.
        """
        until_s = trio.current_time() + self._duration_s
        lease = self._leases.get(file.id)
        if lease is not None:
            lease.until_s = until_s
            self._leases.move_to_end(file.id)
            return True
        cost = cost_bytes(block_count(file.size), bool(file.size), file.size)
        if len(self._leases) >= _MOST or self.bytes + cost > self._room.limit_bytes // 2:
            return False
        self._shelf.hold(file)
        self._leases[file.id] = _Lease(file, cost, until_s)
        self.bytes += cost
        file.leased = file.whole_only = True
        file.unverified.update(file.present or ())
        self._given.set()
        return True

    def end(self, file: CacheFile) -> bool:
        """Let go of the file; whether it was leased."""
        lease = self._leases.pop(file.id, None)
        if lease is None:
            return False
        self.bytes -= lease.cost
        file.leased, file.whole_only = False, file.sealed
        self._shelf.release(file)
        return True

    async def run(self) -> None:
        """End leases when their time is over, until cancelled."""
        while True:
            while not self._leases:  # one may be given and ended before this task runs
                self._given = trio.Event()
                await self._given.wait()
            first = next(iter(self._leases.values()))
            if first.until_s <= trio.current_time():
                self.end(first.file)
            else:
                await trio.sleep_until(first.until_s)
