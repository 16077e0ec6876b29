"""Small files that were fetched whole: in memory until they were read, and written to the disk behind that.

It does not fetch; who does asks for memory first (`reserve`) and brings the bytes
(`put`). A read is answered from here while the bytes are here, and by the cache
file afterwards. Many files are written by one call of a thread: a thread for each
would cost more than the write.

*Concurrency:* the trio thread. The bytes are never changed, so that threads may read them.

*Invariants:* `in_flight` of `Traffic` counts what is reserved and what is held.
Bytes are served only for the version that they are of, and with a `until_s` only
before it. What nobody has read is not dropped for others, unless nobody came for it
for _IDLE_S.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import trio

from volfs.cache.flight import Ahead, Traffic
from volfs.cache.keeping import keep_files
from volfs.core.spans import Extent, blocks_of, clip
from volfs.core.versions import Version
from volfs.telemetry import get_logger

__all__ = ["Wholes"]

log = get_logger(__name__)

#: Files of one call of the writing thread: some milliseconds.
_BATCH: Final = 64

#: What was fetched ahead and nobody opened for so long was a wrong guess.
_IDLE_S: Final = 10.0


@dataclass(slots=True, eq=False)
class _Whole:
    data: bytes
    came_s: float
    until_s: float | None
    pending: bool  # it is to be written to the disk, and is not yet
    done: bool = False  # it was read


class Wholes:
    """See the module."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic
        self._held: OrderedDict[Version, _Whole] = OrderedDict()
        self._pending: OrderedDict[Version, _Whole] = OrderedDict()
        self._bytes = 0  # reserved and held
        self._written = trio.Event()  # the next time that something waits no longer to be written
        self._wanted = trio.Event()  # there is something to write, or to look at again

    def __len__(self) -> int:
        return len(self._held)

    def reserve(self, size: int) -> bool:
        """Hold memory for a file that nobody waits for yet; whether there is some."""
        traffic = self._traffic
        if self._bytes + size > traffic.memory_bytes // 2 or not traffic.may_go_ahead(size):
            self._expire()
            if self._bytes + size > traffic.memory_bytes // 2 or not traffic.may_go_ahead(size):
                return False
        self._take(size)
        return True

    def reserve_now(self, size: int) -> None:
        """As `reserve`, for a file that somebody waits for."""
        self._take(size)

    def _take(self, size: int) -> None:
        self._bytes += size
        self._traffic.in_flight += size

    def cancel(self, size: int) -> None:
        """Nothing came of a reservation."""
        self._bytes -= size
        self._traffic.in_flight -= size
        self._traffic.pump()

    def call_back(self, ahead: Ahead, *, wanted: bool) -> None:
        """There was no memory: tell when there may be; or do not, any more."""
        if wanted:
            self._traffic.waiting[ahead] = None
        else:
            self._traffic.waiting.pop(ahead, None)

    def put(self, version: Version, data: bytes, *, keep: bool, until_s: float | None = None) -> None:
        """All bytes of a version, whose memory was reserved.

        `keep`: the disk shall have them. `until_s`: they are right no longer than that.
        """
        if version in self._held:
            self.cancel(len(data))  # it came twice
            return
        whole = _Whole(data, trio.current_time(), until_s, keep and self._traffic.nursery is not None)
        self._held[version] = whole
        if whole.pending:
            self._pending[version] = whole
        self._wanted.set()

    def has(self, version: Version) -> bool:
        """Whether the bytes are here."""
        whole = self._held.get(version)
        if whole is None:
            return False
        if whole.until_s is not None and trio.current_time() >= whole.until_s:
            self.drop(version)
            return False
        return True

    def read(self, version: Version, offset: int, size: int) -> memoryview | None:
        """The bytes at `offset`, fewer at the end; None if they are not here."""
        if not self.has(version):
            return None
        data = self._held[version].data
        extent: Extent = clip(offset, size, len(data))
        self._traffic.hits += len(blocks_of(extent))
        self._traffic.shelf.queues.served(version, len(data), extent.offset, extent.size)
        return memoryview(data)[extent.offset : extent.offset + extent.size]

    async def kept(self, version: Version) -> None:
        """Return when the bytes do not wait to be written any more: the disk has them, or will not."""
        while version in self._pending:
            await self._written.wait()

    def _settled(self) -> None:
        self._written.set()
        self._written = trio.Event()

    def done(self, version: Version) -> None:
        """Who had the file open has closed it: the bytes go when the disk has them."""
        whole = self._held.get(version)
        if whole is not None:
            whole.done = True
            if not whole.pending:
                self.drop(version)

    def drop(self, version: Version) -> None:
        """The version will not be asked for again, or its bytes are wanted from the store."""
        if self._pending.pop(version, None) is not None:
            self._settled()
        whole = self._held.pop(version, None)
        if whole is not None:
            self.cancel(len(whole.data))

    def clear(self) -> None:
        for version in list(self._held):
            self.drop(version)

    def rekey(self, old: Version, new: Version) -> None:
        """The bytes of `old` are those of `new`."""
        whole = self._held.pop(old, None)
        if whole is not None:
            # What the disk gets is found by its version: one that is being written comes under the old one.
            self._pending.pop(old, None)
            whole.pending = False
            self.drop(new)
            self._held[new] = whole

    def _expire(self) -> None:
        """Drop what was read and what nobody came for."""
        before_s = trio.current_time() - _IDLE_S
        for version, whole in list(self._held.items()):
            if whole.done or whole.came_s < before_s:
                self.drop(version)

    def _next(self) -> dict[Version, _Whole]:
        """What one call writes: in a small cache no more than newcomers may take."""
        batch: dict[Version, _Whole] = {}
        most, size = self._traffic.shelf.queues.admission.guest_bytes, 0
        for version, whole in self._pending.items():
            size += len(whole.data)
            if batch and (size > most or len(batch) == _BATCH):
                break
            batch[version] = whole
        return batch

    async def run(self) -> None:
        """Write what waits, for ever."""
        while True:
            with trio.move_on_after(_IDLE_S if self._held else math.inf) as waiting:
                await self._wanted.wait()
            self._wanted = trio.Event()
            if waiting.cancelled_caught:
                self._expire()
            while self._pending:
                batch = self._next()
                try:
                    await keep_files(self._traffic, [(version, one.data) for version, one in batch.items()])
                except Exception:
                    # They are served from memory; that they are not kept must not end the mount.
                    log.exception("fetched files could not be kept")
                for version, whole in batch.items():
                    self._pending.pop(version, None)
                    whole.pending = False
                    if whole.done and self._held.get(version) is whole:
                        self.drop(version)
                self._settled()
