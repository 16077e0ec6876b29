"""Fetches under way, and what all of them share: memory, the nursery, counters.

It holds bytes for whoever waits for them; it does not fetch.

*Concurrency:* the trio thread. A flight's memory is another's as soon as the flight
is over and nobody uses it: who wants its bytes raises `users` before the first
await, and takes or copies them in the step in which `users` is lowered again.

*Invariants:* a flight's `done` is set exactly once, with `data`, with `error`,
or with neither: the fetch was given up, and who still wants the blocks starts
again. `in_flight` is the sum of the sizes of all flights, `flying` the number of
those that have not arrived, `behind` what of them is on its way to the disk.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Final, Protocol

import trio

from volfs.cache.buffers import Buffers
from volfs.cache.evict import Room
from volfs.cache.shelf import Shelf
from volfs.core.spans import Extent, block_extent
from volfs.store.base import Reader

__all__ = ["Flight", "Purpose", "Traffic"]

#: Flights at once to and from all files, beyond which none begins that nobody waits for: the threads that are
#: left serve those who wait.
_FLYING: Final = 48

#: Writes to the cache disk at once: more would take the threads that cached reads need.
_WRITERS: Final = 4


class Purpose(enum.Enum):
    """Why a flight was begun."""

    READ = enum.auto()  # somebody waits
    AHEAD = enum.auto()  # somebody will want it soon: what is not kept stays in memory for him
    KEEP = enum.auto()  # it is to be in the cache file


class Flight:
    """A run of blocks on its way from the store to the cache file; or, without a reader, from that."""

    __slots__ = (
        "arrived",
        "blocks",
        "buffer",
        "confirmed",
        "data",
        "done",
        "epoch",
        "error",
        "extent",
        "over",
        "purpose",
        "read_out",
        "reader",
        "users",
    )

    def __init__(
        self, blocks: range, file_size: int, reader: Reader | None, epoch: int, purpose: Purpose
    ) -> None:
        self.blocks = blocks
        self.extent = block_extent(blocks, file_size)
        self.reader = reader
        self.epoch = epoch  # of the attachment whose reader this is
        self.purpose = purpose
        self.buffer: memoryview | None = None  # the memory behind `data`, to be given back
        self.data: memoryview | None = None
        self.error: Exception | None = None
        self.done = trio.Event()
        self.read_out = trio.Event()  # its last byte was read, or nobody will come for it
        self.users = 0
        self.arrived = False  # the bytes are in memory, whoever may have them
        self.confirmed = False  # the store has said that they are of the version
        self.over = False

    def part(self, extent: Extent) -> memoryview:
        """The bytes of an extent that lies inside, once they are here."""
        assert self.data is not None
        if extent.end == self.extent.end:
            self.read_out.set()
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
    flying: int = 0
    behind: int = 0
    nursery: trio.Nursery | None = None
    waiting: dict[Ahead, None] = field(default_factory=dict)  # files that wait for memory or a free place
    failing: bool = False  # the cache disk refused the last write
    hits: int = 0
    misses: int = 0
    buffers: Buffers = field(init=False)
    writers: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(_WRITERS))
    lingering_bytes: int = 0  # of flights that are over but for a reader who may come
    _lingering: dict[Flight, None] = field(default_factory=dict)  # those that landed first come first

    def __post_init__(self) -> None:
        self.buffers = Buffers(self.memory_bytes // 4)

    @property
    def _ahead_bytes(self) -> int:
        """What fetching ahead may fill; the rest is for what readers waited for, until it is kept."""
        return self.memory_bytes - self.memory_bytes // 4

    def may_go_ahead(self, size: int) -> bool:
        """Whether there is memory, and a thread, for one more flight that nobody waits for."""
        return self.flying < _FLYING and self.in_flight + size <= self._ahead_bytes

    @property
    def piece_bytes(self) -> int:
        """The largest flight that leaves memory for some others."""
        return self._ahead_bytes // 8

    def may_keep(self, size: int) -> bool:
        """Whether the disk keeps up with the store: else bytes are served, and not kept."""
        return self.behind + size <= self.memory_bytes // 2

    def window_bytes(self) -> int:
        """How far one reader may look ahead now: not so far that the blocks leave before they are read."""
        free = max(0, self._ahead_bytes - self.in_flight)
        return min(free, self.memory_bytes // 2, self.room.limit_bytes // 4)

    async def linger(self, flight: Flight) -> None:
        """Hold the bytes of a flight until they were read, or too much of the memory is held like that."""
        self._lingering[flight] = None
        self.lingering_bytes += flight.extent.size
        for first in list(self._lingering):
            if self.lingering_bytes <= self._ahead_bytes // 2:
                break
            self._forget(first)
        try:
            await flight.read_out.wait()
        finally:
            self._forget(flight)

    def _forget(self, flight: Flight) -> None:
        if flight in self._lingering:
            del self._lingering[flight]
            self.lingering_bytes -= flight.extent.size
            flight.read_out.set()

    def pump(self) -> None:
        """A flight has landed or ended: let those that wait start theirs, in turn."""
        for file in list(self.waiting):
            file.pump()
