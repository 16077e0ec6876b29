"""Reading one version through the cache: what is missing is fetched, once, and served from memory.

It does not decide what leaves (`evict`), nor how far to fetch ahead
(`core.readahead`).

A read that the page cache answers takes no thread and no await. Any other one
starts a flight for each run of missing blocks that nobody fetches yet, joins
those that are under way, and ends as soon as its bytes are in memory; the
flight goes on to the cache file behind it.

*Concurrency:* all state belongs to the trio thread. Flights run in the nursery
of `Cache.run`; without it, one after another in the task that reads. A reader
is not touched once its attachment has ended: its owner closes it right then,
and the descriptor's number may already be another file. `_epoch` tells.

*Invariants:* a block is in at most one flight, and then it is not present.
Bytes are stored, and served, only if the open object still had the version
after they were read. A failing cache disk costs speed, never a read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from volfs.cache.cachefile import CacheFile, read_blocks
from volfs.cache.flight import Flight, Traffic
from volfs.cache.keeping import keep
from volfs.core.readahead import Readahead
from volfs.core.spans import BLOCK_BYTES, Extent, block_count, block_extent, blocks_of, clip, runs
from volfs.core.versions import Version
from volfs.errors import VersionChanged
from volfs.store.base import Reader
from volfs.telemetry import get_logger

__all__ = ["CachedFile"]

log = get_logger(__name__)

#: Blocks of one request to the store: 1 MiB, the kernel's largest. Each request costs a change of threads.
_RUN: Final = 4

#: Flights of one file, until which it may have one more that nobody waits for.
_PARALLEL: Final = 8

#: Blocks of one read of the cache file in a thread: 2 MiB.
_RUN_LOCAL: Final = 8


class CachedFile:
    """One version of one file, for reading. Made by `Cache.attach`; shared by all who attach."""

    __slots__ = (
        "_ahead",
        "_attached",
        "_epoch",
        "_file",
        "_flights",
        "_holds",
        "_left",
        "_parallel",
        "_traffic",
        "size",
        "storable",
    )

    def __init__(self, file: CacheFile, traffic: Traffic, left: Callable[[CacheFile], None]) -> None:
        self.size = file.size
        #: False: the version may still change unseen. Bytes are served from the store and not kept.
        self.storable = True
        self._file = file
        self._traffic = traffic
        self._left = left  # called once nobody is attached and nothing is under way
        self._attached = 0
        self._holds = 0  # reads and flights under way
        self._epoch = 0
        self._flights: dict[int, Flight] = {}  # by each of their blocks
        self._parallel = 0
        self._ahead: deque[tuple[range, Reader]] = deque()

    @property
    def version(self) -> Version:
        return self._file.version

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
        if self._attached <= 0:
            raise AssertionError("detached more often than attached")
        self._attached -= 1
        if not self._attached:
            self._epoch += 1
            self._ahead.clear()
            self._traffic.waiting.pop(self, None)
            self._settle()

    def _release(self) -> None:
        self._holds -= 1
        self._settle()

    def _settle(self) -> None:
        if not self._attached and not self._holds:
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
        if reader is not None and (not self.storable or traffic.room.limit_bytes < BLOCK_BYTES):
            return await self._through(extent, reader)
        traffic.shelf.touch(file)
        if file.fd >= 0 or (traffic.shelf.load_inline(file) and file.present and traffic.shelf.open(file)):
            view = file.peek(extent)
            if view is not None:
                traffic.hits += len(blocks_of(extent))
                if cursor is not None:
                    self._look_ahead(cursor, extent, reader, waited=False)
                return view
        self._holds += 1
        try:
            return await self._gather(extent, reader, cursor)
        finally:
            self._release()

    async def _through(self, extent: Extent, reader: Reader) -> bytes:
        version, epoch = self.version, self._epoch
        self._traffic.misses += len(blocks_of(extent))
        data = bytes(await reader.read(*extent))
        if epoch != self._epoch or (await reader.stat()).version not in (version, self.version):
            raise VersionChanged("the file changed while it was read")
        if len(data) != extent.size:
            raise VersionChanged("the file is shorter than its version")
        return data

    async def _gather(
        self, extent: Extent, reader: Reader | None, cursor: Readahead | None
    ) -> bytearray | memoryview:
        epoch, file = self._epoch, self._file
        await self._traffic.shelf.load(file)
        blocks = blocks_of(extent)
        ready = file.has(n for n in blocks if n not in self._flights or not self._flights[n].done.is_set())
        pending: Iterable[int] = blocks
        out: bytearray | None = None
        while True:
            flights, here, new = self._sort(pending, reader, epoch)
            if out is None:
                self._count(blocks, new)
                if cursor is not None:
                    self._look_ahead(cursor, extent, reader, waited=not ready)
            if self._traffic.nursery is None:
                await self._fly_here(new)
            if out is None and not here and len(flights) == 1:
                (flight,) = flights
                await flight.done.wait()
                if flight.data is not None:
                    return flight.part(extent)
            if out is None:
                out = bytearray(extent.size)
            left: list[int] = []
            for run in runs(here, _RUN_LOCAL):
                left += await self._copy_present(run, extent, out)
            for flight, numbers in flights.items():
                left += await self._copy_flight(flight, numbers, extent, out)
            if not left:
                return out
            pending = sorted(left)

    def _count(self, blocks: range, new: list[Flight]) -> None:
        misses = sum(len(flight.blocks) for flight in new)
        self._traffic.misses += misses
        self._traffic.hits += len(blocks) - misses

    def _sort(
        self, numbers: Iterable[int], reader: Reader | None, epoch: int
    ) -> tuple[dict[Flight, list[int]], list[int], list[Flight]]:
        """Where each block comes from: a flight or the cache file. Missing ones get new flights."""
        present = self._file.present
        assert present is not None
        missing = [n for n in numbers if n not in present and n not in self._flights]
        new: list[Flight] = []
        if missing:
            if reader is None or epoch != self._epoch:
                raise VersionChanged("the bytes of this version are not in the cache")
            new = [self._start(run, reader) for run in runs(missing, _RUN)]
        flights: dict[Flight, list[int]] = {}
        here: list[int] = []
        for number in numbers:
            if number in self._flights:
                flights.setdefault(self._flights[number], []).append(number)
            else:
                here.append(number)
        return flights, here, new

    async def _copy_flight(
        self, flight: Flight, numbers: list[int], extent: Extent, out: bytearray
    ) -> list[int]:
        """Take the blocks from a flight; those that it gave up."""
        await flight.done.wait()
        if flight.error is not None:
            raise flight.error
        if flight.data is None:
            return numbers
        for run in runs(numbers, len(numbers)):
            part = _overlap(extent, block_extent(run, self.size))
            start = part.offset - extent.offset
            out[start : start + part.size] = flight.part(part)
        return []

    async def _copy_present(self, run: range, extent: Extent, out: bytearray) -> list[int]:
        """Take the blocks from the cache file; those that are not there or damaged."""
        file, shelf = self._file, self._traffic.shelf
        if not file.has(run) or not shelf.open(file):
            return list(run)
        part = _overlap(extent, block_extent(run, self.size))
        # Where the bytes may come from a disk, whole blocks: a checksum needs them (R4).
        verify = file.nowait or not file.unverified.isdisjoint(run)
        whole = block_extent(run, self.size) if verify else part
        file.pin(run)
        try:
            data, sums = await shelf.thread(read_blocks, file.fd, whole)
        except OSError as error:
            log.warning("a cache file cannot be read; fetching again", id=file.id, error=str(error))
            self._reject(run)
            return list(run)
        finally:
            file.unpin(run)
        bad: list[int] = []
        if verify and file.present is not None:
            for number, sum_ in zip(run, sums, strict=True):
                known = file.present.get(number)
                if known != sum_:
                    bad.append(number)
                    if known is not None:
                        self._reject(range(number, number + 1))
                else:
                    file.unverified.discard(number)
        start = part.offset - extent.offset
        inside = part.offset - whole.offset
        out[start : start + part.size] = memoryview(data)[inside : inside + part.size]
        return bad

    def _reject(self, run: range) -> None:
        """Blocks that are not what was written: drop them, so that they are fetched again."""
        self._traffic.shelf.reject(self._file, run)

    # -- fetching --------------------------------------------------------------------

    def _start(self, run: range, reader: Reader) -> Flight:
        """A new flight, under way if there is a nursery; else the caller runs `_fly`."""
        flight = Flight(run, self.size, reader, self._epoch)
        for number in run:
            self._flights[number] = flight
        self._holds += 1
        self._parallel += 1
        self._traffic.in_flight += flight.extent.size
        if self._traffic.nursery is not None:
            self._traffic.nursery.start_soon(self._fly, flight)
        return flight

    async def _fly_here(self, flights: list[Flight]) -> None:
        waiting = deque(flights)
        try:
            while waiting:
                await self._fly(waiting.popleft())
        finally:
            for flight in waiting:
                self._end(flight)

    async def _fly(self, flight: Flight) -> None:
        try:
            try:
                flight.data = await self._fetch(flight)
            except Exception as error:
                if flight.epoch == self._epoch:
                    flight.error = error
                log.debug("a fetch failed", offset=flight.extent.offset, error=repr(error))
            finally:
                flight.done.set()
            if flight.data is not None and self.storable:
                await keep(self._traffic, self._file, flight.blocks, flight.data)
        except Exception:
            # The bytes were served; what failed is keeping them, and that must not end the mount.
            log.exception("a fetched block could not be kept")
        finally:
            self._end(flight)

    def _end(self, flight: Flight) -> None:
        flight.done.set()
        for number in flight.blocks:
            del self._flights[number]
        self._parallel -= 1
        self._traffic.in_flight -= flight.extent.size
        self._release()
        self._traffic.pump()

    async def _fetch(self, flight: Flight) -> memoryview | None:
        """The bytes; None if the attachment ended, and the reader with it."""
        version = self.version
        if flight.epoch != self._epoch:
            return None
        got = await flight.reader.read(*flight.extent)
        data = memoryview(got if isinstance(got, bytes) else bytes(got))
        if flight.epoch != self._epoch:
            return None
        st = await flight.reader.stat()
        # Our own chmod may have given the same bytes a new version on the way (`rekey`).
        if st.version not in (version, self.version):
            raise VersionChanged("the file changed while it was read")
        if len(data) != flight.extent.size:
            raise VersionChanged("the file is shorter than its version")
        return data

    # -- fetching ahead --------------------------------------------------------------

    def _look_ahead(self, cursor: Readahead, extent: Extent, reader: Reader | None, *, waited: bool) -> None:
        window = self._traffic.window_bytes()
        wanted = cursor.advance(extent.offset, extent.size, self.size, waited, window)
        if wanted is None or reader is None or self._traffic.nursery is None:
            return
        self._ahead.append((blocks_of(wanted), reader))
        self.pump()

    def pump(self) -> None:
        """Start flights for blocks that will be wanted, as far as memory and the number of flights allow."""
        traffic, present = self._traffic, self._file.present
        while self._ahead and self._parallel < _PARALLEL and traffic.nursery is not None:
            blocks, reader = self._ahead.popleft()
            missing = (n for n in blocks if n not in (present or ()) and n not in self._flights)
            run = next(runs(missing, _RUN), None)
            if run is None:
                continue
            self._ahead.appendleft((range(run.start, blocks.stop), reader))
            if not traffic.may_go_ahead(block_extent(run, self.size).size):
                break
            self._start(run, reader)
        if self._ahead and traffic.nursery is not None:
            traffic.waiting[self] = None
        else:
            self._ahead.clear()
            traffic.waiting.pop(self, None)


def _overlap(a: Extent, b: Extent) -> Extent:
    start = max(a.offset, b.offset)
    return Extent(start, min(a.end, b.end) - start)
