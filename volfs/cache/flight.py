"""Fetches under way, and what all of them share: memory, the nursery, counters.

It holds bytes for whoever waits for them; it does not fetch.

*Invariants:* a flight's `done` is set exactly once, with `data`, with `error`,
or with neither: the fetch was given up, and who still wants the blocks starts
again. `in_flight` is the sum of the sizes of all flights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import trio

from volfs.cache.evict import Room
from volfs.cache.shelf import Shelf
from volfs.core.spans import Extent, block_extent
from volfs.store.base import Reader

__all__ = ["Flight", "Traffic"]


class Flight:
    """A run of blocks on its way from the store through memory to the cache file."""

    __slots__ = ("blocks", "data", "done", "epoch", "error", "extent", "reader")

    def __init__(self, blocks: range, file_size: int, reader: Reader, epoch: int) -> None:
        self.blocks = blocks
        self.extent = block_extent(blocks, file_size)
        self.reader = reader
        self.epoch = epoch  # of the attachment whose reader this is
        self.data: memoryview | None = None
        self.error: Exception | None = None
        self.done = trio.Event()

    def part(self, extent: Extent) -> memoryview:
        """The bytes of an extent that lies inside, once they are here."""
        assert self.data is not None
        start = extent.offset - self.extent.offset
        return self.data[start : start + extent.size]


class Ahead(Protocol):
    """A file with blocks to fetch ahead."""

    def pump(self) -> None: ...


@dataclass(eq=False, slots=True)
class Traffic:
    """What the files of one cache share."""

    shelf: Shelf
    room: Room
    memory_bytes: int
    in_flight: int = 0  # bytes of all flights, fetched or not
    nursery: trio.Nursery | None = None
    waiting: dict[Ahead, None] = field(default_factory=dict)  # files that wait for memory or a free place
    failing: bool = False  # the cache disk refused the last write
    hits: int = 0
    misses: int = 0

    @property
    def _ahead_bytes(self) -> int:
        """What fetching ahead may fill; the rest is for what readers waited for, until it is kept."""
        return self.memory_bytes - self.memory_bytes // 4

    def may_go_ahead(self, size: int) -> bool:
        """Whether there is memory for one more flight that nobody waits for."""
        return self.in_flight + size <= self._ahead_bytes

    def window_bytes(self) -> int:
        """How far one handle may look ahead now: not so far that the blocks leave before they are read."""
        free = max(0, self._ahead_bytes - self.in_flight)
        return 0 if self.failing else min(free, self.memory_bytes // 2, self.room.limit_bytes // 4)

    def pump(self) -> None:
        """A flight has ended: let those that wait start theirs, in turn."""
        for file in list(self.waiting):
            file.pump()
