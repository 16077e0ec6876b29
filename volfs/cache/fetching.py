"""The flights of one cache file: begun once for each block, landed in memory, written behind.

It decides neither who reads what (`reading`) nor how far to fetch ahead
(`core.readahead`).

A block that is missing flies in from the store; one that is on the disk and not in
the page cache from the cache file, verified. Both are served from memory. What was
fetched ahead and could not be kept stays there until it was read.

*Concurrency:* all state belongs to the trio thread. Flights run in the nursery
of `Cache.run`; without it, one after another in the task that reads. A reader
is not touched once its attachment has ended: its owner closes it right then,
and the descriptor's number may already be another file. `epoch` tells.

*Invariants:* a block is in at most one flight; it is present if and only if that
flight came from the cache file, until it is kept. Bytes are stored, and fetched
ahead, only if the open object had the version after they were read. Where that takes
a second round trip, who waits for them has them before it, and from the answer on
nobody reads on in a version that is gone. A failing cache disk costs speed, never a
read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import trio

from volfs.cache.blocks import read_direct, read_into
from volfs.cache.cachefile import CacheFile
from volfs.cache.confirming import Confirmation
from volfs.cache.flight import Flight, Purpose, Traffic
from volfs.cache.keeping import keep
from volfs.core.spans import BLOCK_BYTES, block_extent, runs
from volfs.errors import VersionChanged, VolfsError
from volfs.store.base import Reader
from volfs.telemetry import get_logger

__all__ = ["Fetching"]

log = get_logger(__name__)

#: Blocks of one flight at most: 4 MiB, the work of which in Python is small beside that of the kernel.
_RUN: Final = (4 << 20) // BLOCK_BYTES

#: Flights have whole MiB, the kernel's largest request, so that few reads need two of them.
_MIB: Final = (1 << 20) // BLOCK_BYTES

#: Flights of one file that have not landed, beyond which none begins that nobody waits for.
_PARALLEL: Final = 16

#: So much may wait for the disk while it is written directly: some 50 ms.
_BEHIND_BYTES: Final = 48 << 20

#: What O_DIRECT wants to be asked for a multiple of.
_PAGE: Final = 4096


@dataclass(slots=True)
class _Wanted:
    """Blocks to be fetched ahead, in order."""

    start: int
    stop: int
    reader: Reader | None
    purpose: Purpose
    run: int  # of one flight, at most


class Fetching:
    """See the module. `freed` is called when a flight or a read has ended."""

    __slots__ = (
        "_confirmation",
        "_file",
        "_flying",
        "_freed",
        "_traffic",
        "_wanted",
        "changed",
        "epoch",
        "flights",
        "holds",
        "storable",
    )

    def __init__(self, file: CacheFile, traffic: Traffic, freed: Callable[[], None]) -> None:
        self.storable = True
        self.changed = False  # the open object has another version by now
        self.epoch = 0
        self.holds = 0  # reads and flights under way
        self.flights: dict[int, Flight] = {}  # by each of their blocks
        self._file = file
        self._traffic = traffic
        self._freed = freed
        self._flying = 0
        self._wanted: deque[_Wanted] = deque()
        self._confirmation = Confirmation()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way, nor waits to be."""
        return not self._wanted and not self.flights

    def hold(self) -> None:
        self.holds += 1

    def release(self) -> None:
        self.holds -= 1
        self._freed()

    def renounce(self) -> None:
        """Nobody is attached any more: readers are gone, and what was fetched ahead is for nobody."""
        self.epoch += 1
        self._wanted.clear()
        self._file.ahead.clear()
        self._traffic.waiting.pop(self, None)
        for flight in self.flights.values():
            flight.read_out.set()

    def let_go(self, flight: Flight) -> None:
        """Who raised `users` has its bytes."""
        flight.users -= 1
        self._recycle(flight)

    # -- flights -----------------------------------------------------------------------

    def sort(
        self, numbers: Iterable[int], reader: Reader | None, epoch: int
    ) -> tuple[dict[Flight, list[int]], list[Flight]]:
        """The flight of each block, and which are new: without a nursery the caller runs those."""
        present = self._file.present
        assert present is not None
        free = [number for number in numbers if number not in self.flights]
        missing = [number for number in free if number not in present]
        if missing and (reader is None or epoch != self.epoch):
            raise VersionChanged("the bytes of this version are not in the cache")
        new = [self._start(run, reader, Purpose.READ) for run in runs(missing, _RUN)]
        if len(missing) < len(free):
            here = [number for number in free if number in present]
            new += [self._start(run, None, Purpose.READ) for run in runs(here, _RUN)]
        found: dict[Flight, list[int]] = {}
        for number in numbers:
            found.setdefault(self.flights[number], []).append(number)
        return found, new

    def _start(self, run: range, reader: Reader | None, purpose: Purpose) -> Flight:
        flight = Flight(run, self._file.size, reader, self.epoch, purpose)
        for number in run:
            self.flights[number] = flight
        if reader is None:
            self._file.pin(run)
        elif purpose is Purpose.AHEAD:
            self._traffic.shelf.queues.fetch_ahead(self._file, run)
        self.hold()
        self._flying += 1
        traffic = self._traffic
        traffic.flying += 1
        traffic.in_flight += flight.extent.size
        if traffic.nursery is not None:
            traffic.nursery.start_soon(self._fly, flight)
        return flight

    async def fly_here(self, flights: list[Flight]) -> None:
        """Run new flights in this task: there is no nursery."""
        waiting = deque(flights)
        try:
            while waiting:
                await self._fly(waiting.popleft())
        finally:
            for flight in waiting:
                self._land(flight)
                self._end(flight)

    async def _fly(self, flight: Flight) -> None:
        try:
            try:
                flight.data = await self._bring(flight)
                if flight.purpose is not Purpose.READ and not await self._confirm(flight):
                    flight.data = None
            except Exception as error:
                if flight.epoch == self.epoch:
                    flight.error = error
                log.debug("a fetch failed", offset=flight.extent.offset, error=repr(error))
            finally:
                self._land(flight)
            if flight.data is not None:
                await self._keep(flight, flight.data)
        except Exception:
            # The bytes were served; what failed is keeping them, and that must not end the mount.
            log.exception("a fetched block could not be kept")
        finally:
            self._end(flight)

    def _land(self, flight: Flight) -> None:
        flight.done.set()
        if flight.reader is None:
            self._file.unpin(flight.blocks)
        self._arrive(flight)

    def _arrive(self, flight: Flight) -> None:
        """Its descriptor and thread are free for the next one."""
        if not flight.arrived:
            flight.arrived = True
            self._flying -= 1
            self._traffic.flying -= 1
            self._traffic.pump()

    def _end(self, flight: Flight) -> None:
        for number in flight.blocks:
            del self.flights[number]
        self._traffic.in_flight -= flight.extent.size
        flight.over = True
        self._recycle(flight)
        self.release()
        self._traffic.pump()

    def _recycle(self, flight: Flight) -> None:
        if flight.over and not flight.users and flight.buffer is not None:
            flight.data = None
            self._traffic.buffers.give(flight.buffer)
            flight.buffer = None

    async def _bring(self, flight: Flight) -> memoryview | None:
        """The bytes; None if they are not to be had like this, and whoever wants them looks again."""
        if flight.reader is None:
            return await self._load(flight)
        return await self._fetch(flight, flight.reader)

    async def _fetch(self, flight: Flight, reader: Reader) -> memoryview | None:
        """From the store; None if the attachment ended, and the reader with it."""
        file, (offset, size) = self._file, flight.extent
        version = file.version
        if flight.epoch != self.epoch:
            return None
        buffer = self._traffic.buffers.take(size)
        filled = await reader.read_into(buffer[: -(-size // _PAGE) * _PAGE], offset)
        flight.buffer = buffer  # not before: a call that raised may still write to it
        self._arrive(flight)
        if flight.epoch != self.epoch:
            return None
        # Our own chmod may have given the same bytes a new version on the way (`rekey`).
        if filled.version not in (version, file.version):
            raise VersionChanged("the file changed while it was read")
        if filled.size < size:
            raise VersionChanged("the file is shorter than its version")
        flight.confirmed = filled.certain
        return buffer[:size]

    async def _confirm(self, flight: Flight) -> bool:
        """Whether the bytes are of our version for certain; if not, nobody reads on in it."""
        if flight.reader is None or flight.confirmed:
            return True
        version, epoch = self._file.version, flight.epoch
        await trio.lowlevel.checkpoint()  # who waits for the bytes goes first
        found = await self._confirmation.version(flight.reader, lambda: epoch == self.epoch)
        if epoch != self.epoch:
            return False
        # Our own chmod may have given the same bytes a new version on the way (`rekey`).
        flight.confirmed = found in (version, self._file.version)
        self.changed = self.changed or not flight.confirmed
        return flight.confirmed

    async def _load(self, flight: Flight) -> memoryview | None:
        """From the cache file, verified (R4); None if not all blocks are there and as they were written."""
        file, shelf, (offset, size) = self._file, self._traffic.shelf, flight.extent
        if not file.has(flight.blocks) or not shelf.open(file):
            return None
        flight.buffer = buffer = self._traffic.buffers.take(size)
        data = buffer[:size]
        # A block that somebody waits for may be wanted again: its pages stay.
        direct = file.direct_in(flight.blocks) if flight.purpose is Purpose.AHEAD else file.fd
        try:
            if direct != file.fd:
                whole = buffer[: -(-size // _PAGE) * _PAGE]
                sums = await shelf.thread(read_direct, direct, file.fd, whole, size, offset)
            else:
                sums = await shelf.thread(read_into, file.fd, data, offset)
        except OSError as error:
            log.warning("a cache file cannot be read; fetching again", id=file.id, error=str(error))
            shelf.reject(file, flight.blocks)
            return None
        present = file.present or {}
        bad = [n for n, sum_ in zip(flight.blocks, sums, strict=True) if present.get(n) != sum_]
        if bad:
            shelf.reject(file, bad)
            return None
        if direct == file.fd:
            file.unverified.difference_update(flight.blocks)
        else:
            file.unverified.update(flight.blocks)  # whose pages come from the disk once more
        return data

    async def _keep(self, flight: Flight, data: memoryview) -> None:
        """Write behind what came from the store, and hold in memory what a reader will come for.

        Also what was kept: once more from the page cache would be one more copy.
        """
        traffic = self._traffic
        try:
            if not await self._confirm(flight):
                return
        except VolfsError as error:
            log.debug("not kept: nobody knows which version it is of", error=str(error))
            return
        if flight.reader is not None:
            size = len(data)
            if self.storable and (flight.purpose is Purpose.KEEP or traffic.may_keep(size)):
                traffic.behind += size
                try:
                    async with traffic.writers:
                        # A disk that falls behind gets it through the page cache, which is larger.
                        direct = flight.purpose is Purpose.AHEAD and traffic.behind <= _BEHIND_BYTES
                        await keep(traffic, self._file, flight.blocks, data, direct=direct)
                finally:
                    traffic.behind -= size
        if flight.purpose is Purpose.AHEAD and flight.epoch == self.epoch:
            await traffic.linger(flight)

    # -- ahead -------------------------------------------------------------------------

    def want(
        self, blocks: range, reader: Reader | None, purpose: Purpose, piece_bytes: int = _RUN * BLOCK_BYTES
    ) -> None:
        """Fetch these blocks ahead, about so many bytes a flight, as far as memory and threads allow."""
        if self._traffic.nursery is None:
            return
        piece = min(piece_bytes, self._traffic.piece_bytes) // BLOCK_BYTES
        run = min(_RUN, max(_MIB, piece // _MIB * _MIB))
        for wanted in self._wanted:
            if wanted.start <= blocks.start <= wanted.stop and wanted.purpose is purpose:
                wanted.stop = max(wanted.stop, blocks.stop)  # it is the same stream that goes on
                wanted.reader, wanted.run = reader, run
                break
        else:
            self._wanted.append(_Wanted(blocks.start, blocks.stop, reader, purpose, run))
        self.pump()

    def want_no_more(self) -> None:
        """Begin no more of what is wanted ahead."""
        self._wanted.clear()
        self._traffic.waiting.pop(self, None)
        self._freed()

    def pump(self) -> None:
        """Begin flights that are wanted ahead: one of each stream in turn, each stream in order."""
        traffic = self._traffic
        while self._wanted and self._flying < _PARALLEL and traffic.nursery is not None:
            wanted = self._wanted[0]
            run, reader = self._next(wanted)
            if run is None:
                self._wanted.popleft()
                continue
            if not traffic.may_go_ahead(block_extent(run, self._file.size).size):
                break
            wanted.start = run.stop
            self._wanted.rotate(-1)
            self._start(run, reader, wanted.purpose)
        if self._wanted and traffic.nursery is not None:
            traffic.waiting[self] = None
        else:
            self._wanted.clear()
            traffic.waiting.pop(self, None)

    def _next(self, wanted: _Wanted) -> tuple[range | None, Reader | None]:
        """The next blocks to be fetched, and the reader for them: None for those on the disk."""
        present = self._file.present or {}
        while wanted.start < wanted.stop:
            start = stop = wanted.start
            if start in self.flights:
                wanted.start = self.flights[start].blocks.stop
                continue
            is_here = start in present
            while (
                stop < wanted.stop
                and stop - start < wanted.run
                and stop not in self.flights
                and (stop in present) is is_here
            ):
                stop += 1
            run = range(start, stop)
            if is_here:
                if wanted.purpose is Purpose.AHEAD and not self._file.is_resident(run):
                    return run, None
            elif wanted.reader is not None:
                return run, wanted.reader
            wanted.start = stop
        return None, None
