"""Reading one version through the cache, for all who have it open.

It decides neither what leaves (`evict`) nor how far to fetch ahead
(`core.readahead`), and it fetches nothing itself (`fetching`).

A read that the page cache answers takes no thread and no await. Any other one
joins the flights of its blocks, begins those that nobody has begun, and ends as
soon as its bytes are in memory; the flights go on to the cache file behind it.

*Concurrency:* all state belongs to the trio thread. What is answered may be a view
of memory that is used again after the next await.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import trio

from volfs.cache.cachefile import CacheFile
from volfs.cache.fetching import Fetching
from volfs.cache.flight import Flight, Purpose, Traffic
from volfs.core.readahead import Readahead
from volfs.core.spans import BLOCK_BYTES, Extent, block_count, block_extent, blocks_of, clip, runs
from volfs.core.versions import Version
from volfs.errors import VersionChanged
from volfs.store.base import Reader

__all__ = ["CachedFile"]

#: The largest request of the kernel. A read that several flights answer is put together here.
_SCRATCH: Final = memoryview(bytearray(1 << 20))


class CachedFile:
    """One version of one file, for reading. Made by `Cache.attach`; shared by all who attach."""

    __slots__ = ("_attached", "_fetching", "_file", "_left", "_quiet", "_traffic", "size")

    def __init__(self, file: CacheFile, traffic: Traffic, left: Callable[[CacheFile], None]) -> None:
        self.size = file.size
        self._file = file
        self._traffic = traffic
        self._left = left  # called once nobody is attached and nothing is under way
        self._attached = 0
        self._fetching = Fetching(file, traffic, self._settle)
        self._quiet: trio.Event | None = None  # somebody waits until nothing is under way

    @property
    def version(self) -> Version:
        return self._file.version

    @property
    def local(self) -> CacheFile:
        return self._file

    @property
    def storable(self) -> bool:
        """False: the version may still change unseen. Bytes are served from the store and not kept."""
        return self._fetching.storable

    @storable.setter
    def storable(self, value: bool) -> None:
        self._fetching.storable = value

    @property
    def complete(self) -> bool:
        """Whether every block is present."""
        present = self._file.present
        if present is None:
            self._traffic.shelf.load_inline(self._file)
            present = self._file.present
        return present is not None and len(present) == block_count(self.size)

    # -- who uses it -----------------------------------------------------------------

    def attach(self) -> None:
        self._attached += 1

    def detach(self) -> None:
        """End one attachment. Readers that came with the last one are not used any more."""
        assert self._attached > 0, "detached more often than attached"
        self._attached -= 1
        if not self._attached:
            self._fetching.renounce()
            self._settle()

    def _settle(self) -> None:
        if self._quiet is not None and self._fetching.idle:
            self._quiet.set()
            self._quiet = None
        if not self._attached and not self._fetching.holds:
            self._left(self._file)

    # -- reading ---------------------------------------------------------------------

    async def read(
        self, offset: int, size: int, reader: Reader | None, cursor: Readahead | None = None
    ) -> bytes | bytearray | memoryview:
        """At most `size` bytes at `offset`, of exactly this version; fewer only at its end.

        The result may be a view of a buffer that the next read reuses: use or
        copy it before the next await. VersionChanged where the bytes cannot be
        had: `reader` shows another version, or is None and a block is missing.
        """
        extent = clip(offset, size, self.size)
        if not extent.size:
            return b""
        traffic, file = self._traffic, self._file
        if self._fetching.changed and reader is not None:
            self._fetching.changed = False  # who looks and finds our version may read on
            raise VersionChanged("the file has changed since it was read")
        kept = self.storable and traffic.room.limit_bytes >= BLOCK_BYTES
        if reader is not None and not kept and not self.complete:
            return await self._through(extent, reader)
        traffic.shelf.touch(file, extent.size)
        if file.ahead:
            for number in blocks_of(extent):
                file.ahead.pop(number, None)
        if file.fd >= 0 or (traffic.shelf.load_inline(file) and file.present and traffic.shelf.open(file)):
            blocks = blocks_of(extent)
            flights = self._fetching.flights
            # What a flight brings from the disk is not to be asked for a second time.
            view = file.peek(extent) if blocks[0] not in flights and blocks[-1] not in flights else None
            if view is not None:
                traffic.hits += len(blocks)
                if cursor is not None:
                    self._look_ahead(cursor, extent, reader, waited=False)
                return view
        self._fetching.hold()
        try:
            return await self._gather(extent, reader, cursor)
        finally:
            self._fetching.release()

    async def _through(self, extent: Extent, reader: Reader) -> memoryview:
        version, fetching, buffers = self.version, self._fetching, self._traffic.buffers
        epoch = fetching.epoch
        self._traffic.misses += len(blocks_of(extent))
        buffer = buffers.take(extent.size)
        found, n = None, 0
        filled = await reader.read_into(buffer[: extent.size], extent.offset)
        if epoch == fetching.epoch:
            n = filled.size
            found = filled.version if filled.certain else (await reader.stat()).version
        buffers.give(buffer)  # it is not taken before the next await
        if epoch != fetching.epoch or found not in (version, self.version):
            raise VersionChanged("the file changed while it was read")
        if n != extent.size:
            raise VersionChanged("the file is shorter than its version")
        return buffer[:n]

    async def _gather(
        self, extent: Extent, reader: Reader | None, cursor: Readahead | None
    ) -> bytearray | memoryview:
        fetching, traffic = self._fetching, self._traffic
        epoch = fetching.epoch
        await traffic.shelf.load(self._file)
        blocks = blocks_of(extent)
        held: dict[Flight, list[int]] = {}
        pending: Iterable[int] = blocks
        try:
            while pending:
                found, new = fetching.sort(pending, reader, epoch)
                for flight in found:
                    flight.users += 1
                held.update(found)
                if pending is blocks:
                    self._count(blocks, new)
                    if cursor is not None:
                        waited = not all(flight.done.is_set() for flight in found)
                        self._look_ahead(cursor, extent, reader, waited=waited)
                if traffic.nursery is None:
                    await fetching.fly_here(new)
                pending = await self._landed(found, held)
            return self._put_together(held, extent)
        finally:
            for flight in held:
                fetching.let_go(flight)

    async def _landed(self, found: dict[Flight, list[int]], held: dict[Flight, list[int]]) -> list[int]:
        """Wait for the flights. The blocks of those that were given up, which are not `held` any more."""
        left: list[int] = []
        for flight, numbers in found.items():
            if not flight.done.is_set():
                await flight.done.wait()
            if flight.error is not None:
                raise flight.error
            if flight.data is None:
                left += numbers
                del held[flight]
                self._fetching.let_go(flight)
        return sorted(left)

    def _put_together(self, held: dict[Flight, list[int]], extent: Extent) -> bytearray | memoryview:
        """The bytes, from flights that have landed. No await: the memory may be used again after it."""
        if len(held) == 1:
            return next(iter(held)).part(extent)
        out = _SCRATCH if extent.size <= len(_SCRATCH) else bytearray(extent.size)
        for flight, numbers in held.items():
            for run in runs(numbers, len(numbers)):
                part = _overlap(extent, block_extent(run, self.size))
                start = part.offset - extent.offset
                out[start : start + part.size] = flight.part(part)
        return out if isinstance(out, bytearray) else out[: extent.size]

    def _count(self, blocks: range, new: list[Flight]) -> None:
        misses = sum(len(flight.blocks) for flight in new if flight.reader is not None)
        self._traffic.misses += misses
        self._traffic.hits += len(blocks) - misses

    # -- fetching ahead --------------------------------------------------------------

    def _look_ahead(self, cursor: Readahead, extent: Extent, reader: Reader | None, *, waited: bool) -> None:
        window = self._traffic.window_bytes()
        wanted = cursor.advance(extent.offset, extent.size, self.size, waited, window)
        if wanted is not None:
            self._fetching.want(blocks_of(wanted), reader, Purpose.AHEAD, cursor.piece_bytes)

    async def fetch_rest(self, reader: Reader, until_s: float) -> None:
        """Fetch what is missing into the cache file, for nobody who waits; begin nothing after that time."""
        self._fetching.want(range(block_count(self.size)), reader, Purpose.KEEP)
        with trio.move_on_at(until_s):
            await self.landed()
        self._fetching.want_no_more()
        await self.landed()

    async def landed(self) -> None:
        """Return when nothing is under way to the cache file, nor waits to be."""
        while not self._fetching.idle:
            if self._quiet is None:
                self._quiet = trio.Event()
            await self._quiet.wait()


def _overlap(a: Extent, b: Extent) -> Extent:
    start = max(a.offset, b.offset)
    return Extent(start, min(a.end, b.end) - start)
