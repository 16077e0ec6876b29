"""The block cache of one mount: the door to everything in this package.

It owns the life of the cache: open, the service in the background, close. What
a read does is in `reading`, what leaves in `evict`, what is known in `shelf`.

*Concurrency:* the trio thread. The daemon holds a lock on the directory.

*Invariants:* at most one `CachedFile` a cache file; it is the same for all who
are attached to a version.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

import trio

from volfs.cache.cachefile import CacheFile
from volfs.cache.check import CacheReport, Check, Look, Mend
from volfs.cache.contents import Contents
from volfs.cache.evict import DISK_FULL, Room
from volfs.cache.flight import Traffic
from volfs.cache.keeping import place
from volfs.cache.lease import Leases
from volfs.cache.overhead import Overhead
from volfs.cache.reading import CachedFile
from volfs.cache.reconcile import can_punch, open_index
from volfs.cache.shelf import Shelf
from volfs.cache.whole import Wholes
from volfs.core.spans import BLOCK_BYTES, INODE_BYTES, block_count, cost_bytes
from volfs.core.versions import Version
from volfs.telemetry import get_logger

__all__ = ["BLOCK_BYTES", "DISK_FULL", "Cache", "CachedFile"]

log = get_logger(__name__)

#: What the index hears in one transaction. A crash forgets the blocks of so long, and they are fetched again.
_FLUSH_S: Final = 1.0


class Cache:
    """See the module."""

    def __init__(self, shelf: Shelf, room: Room, memory_bytes: int, lease_s: float) -> None:
        self._shelf = shelf
        self._room = room
        self._traffic = Traffic(shelf, room, memory_bytes)
        #: Small files that were fetched whole, in memory.
        self.wholes = Wholes(self._traffic)
        self._attached: dict[int, CachedFile] = {}
        self.contents = Contents(shelf, room)
        self.leases = Leases(shelf, room, lease_s)

    @classmethod
    def open(
        cls,
        directory: Path,
        limit_bytes: int,
        memory_bytes: int,
        *,
        staged: Callable[[], int] = lambda: 0,
        databases: Iterable[Path] = (),
        lease_s: float = 60.0,
    ) -> Cache:
        """The cache in an existing directory that no other process uses.

        `limit_bytes`: what cache files, the index, the `staged` bytes and others'
        `databases` may take on the disk together. `memory_bytes`: what may be in memory between the store
        and the disk, beyond the reads that wait for it. `lease_s`: how long a file that is handed out
        stays. OSError or sqlite3.Error where the directory is unusable.
        """
        index = open_index(directory)
        punches = can_punch(directory)
        if not punches:
            log.info("the cache's file system punches no holes; whole files leave", path=str(directory))
        shelf = Shelf(directory / "blocks", index)
        overhead = Overhead(directory, databases)
        room = Room(shelf, limit_bytes, punches=punches, overhead=overhead, staged=staged)
        return cls(shelf, room, memory_bytes, lease_s)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled: flights, and news to the index. Without it, reads fetch for themselves."""
        async with trio.open_nursery() as nursery:
            self._traffic.nursery = nursery
            try:
                nursery.start_soon(self.leases.run)
                nursery.start_soon(self.wholes.run)
                task_status.started()
                await self._room.shrink()  # the limit may be smaller than at the last start
                while True:
                    await self._shelf.wanted.wait()
                    with trio.move_on_after(_FLUSH_S):
                        await self._shelf.urgent.wait()
                    await self._room.flush()
            finally:
                self._traffic.nursery = None

    def close(self) -> None:
        """Tell the index the rest. Nobody may read any more."""
        self._shelf.close()

    def attach(self, version: Version, size: int) -> CachedFile:
        """The bytes of a version, for reading; end with its `detach`."""
        file = self._shelf.find(version, size)
        cached = self._attached.get(file.id)
        if cached is None:
            self._shelf.use(file)
            cached = self._attached[file.id] = CachedFile(file, self._traffic, self._left)
        cached.attach()
        return cached

    def _left(self, file: CacheFile) -> None:
        del self._attached[file.id]
        self._shelf.release(file)

    def forget(self, version: Version) -> None:
        """The version will not be asked for again; its blocks go when nobody is attached."""
        self.wholes.drop(version)
        self._shelf.forget(version)

    def complete(self, sizes: Mapping[Version, int]) -> set[Version]:
        """Those of the versions, given with their sizes, of which the disk has all."""
        return self._shelf.complete(sizes)

    def rekey(self, old: Version, new: Version) -> None:
        """The bytes of `old` have a new version: our own change of attributes."""
        self.wholes.rekey(old, new)
        self._shelf.rekey(old, new)

    def release(self, version: Version, size: int) -> bool:
        """End the lease of a version's cache file; whether it had one."""
        return self.leases.end(self._shelf.find(version, size))

    async def adopt(self, version: Version, size: int, staged: Path, sums: list[int]) -> None:
        """Take the file `staged`, on the same file system, as the complete cache file of a version.

        `sums`: xxh3_64 of each block. Where it does not fit it is removed. Its bytes are
        counted as staged until the caller says that they are not.
        """
        reserved, placed = 0, False
        try:
            st = os.stat(staged, follow_symlinks=False)
            count = block_count(size)
            held = st.st_blocks * 512
            cost = max(cost_bytes(count, bool(count), size), held + INODE_BYTES)
            fits = count > 0 and len(sums) == count and st.st_size == size
            fits = fits and self._room.limit_bytes + held >= cost
            if fits and await self._room.reserve(cost - held):
                reserved = cost - held
                placed = place(self._shelf, version, size, staged, sums, cost)
        except OSError as error:
            log.warning("a committed file cannot be kept in the cache", error=str(error))
        finally:
            self._room.reserved -= reserved
            if not placed:
                _remove(staged)

    async def evict_all(self) -> None:
        """Drop every block that nobody reads at this moment."""
        self.wholes.clear()
        await self._room.evict_all()

    async def look(self) -> CacheReport:
        """Check index, cache files and checksums, while it serves; change nothing."""
        return await Check(self._shelf, Look()).run()

    async def mend(self) -> CacheReport:
        """As `look`, and drop what is wrong, so that it is fetched again."""
        return await Check(self._shelf, Mend(self._shelf)).run()

    async def shrink(self) -> None:
        """Staged files have grown: give up the blocks that do not fit under the limit any more."""
        await self._room.shrink()

    async def yield_space(self, size: int) -> bool:
        """The disk is full for a writer of `size` bytes: give up blocks; whether there were any to give."""
        return await self._room.yield_space(size)

    @property
    def used_bytes(self) -> int:
        """What all cache files take on the disk, at most."""
        return self._shelf.used_bytes

    @property
    def limit_bytes(self) -> int:
        return self._room.total_bytes

    @property
    def room_bytes(self) -> int:
        """What cache files may take now, beside staged files and the index."""
        return self._room.limit_bytes

    @property
    def evicted_bytes(self) -> int:
        """What has left since the start because room was needed."""
        return self._room.evicted_bytes

    @property
    def hits(self) -> int:
        """Blocks read that were here, or on their way."""
        return self._traffic.hits

    @property
    def misses(self) -> int:
        """Blocks read that had to be fetched for the read."""
        return self._traffic.misses

    @property
    def corrupt_blocks(self) -> int:
        """Blocks that were not what their checksum says, and were fetched again."""
        return self._shelf.corrupt_blocks


def _remove(staged: Path) -> None:
    try:
        staged.unlink(missing_ok=True)
    except OSError as error:
        log.warning("a committed file cannot be removed", path=str(staged), error=str(error))
