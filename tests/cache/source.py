"""A file of a store in the hands of a test, and ways to open a cache over it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import trio
import xxhash

from volfs.cache.fill import BLOCK_BYTES, Cache
from volfs.core.spans import block_count
from volfs.core.versions import Version
from volfs.errors import StoreError
from volfs.store.base import Changes, Filled, Stat

M = 1 << 20
LIMIT = 64 * M

_STAT = Stat(0o100644, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, b"i", Version(b""))


def content(size: int, seed: int = 1) -> bytes:
    """Bytes in which every block is another one."""
    words = (
        xxhash.xxh3_64_digest(seed.to_bytes(8, "big") + i.to_bytes(8, "big")) for i in range(-(-size // 4096))
    )
    return b"".join(word * 512 for word in words)[:size]


def sums_of(data: bytes) -> list[int]:
    """What `adopt` wants."""
    return [xxhash.xxh3_64_intdigest(data[i : i + BLOCK_BYTES]) for i in range(0, len(data), BLOCK_BYTES)]


class Source:
    """`store.base.Reader` over bytes. Counts the fetches of each block; may be slow, changed or broken."""

    def __init__(self, data: bytes, version: bytes = b"v1") -> None:
        self.data = data
        self.version = Version(version)
        self.fetched: Counter[int] = Counter()
        self.reads = 0
        self.asked = 0  # for attributes
        self.at_once = 0
        self.most_at_once = 0
        self.remembered: Version | None = None  # what the store's client remembers as the version, if it does
        self.closed = False
        self.used_closed = 0  # an exception would not do: who called may swallow it
        self.error: Exception | None = None
        self.on_read: Callable[[int], Awaitable[None]] | None = None
        self._buffer = bytearray()

    async def read(self, offset: int, size: int) -> memoryview:
        self._use()
        self.reads += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await trio.lowlevel.checkpoint()
            if self.on_read is not None:
                await self.on_read(offset)
            if self.error is not None:
                raise self.error
            for block in range(offset // BLOCK_BYTES, (offset + size - 1) // BLOCK_BYTES + 1):
                self.fetched[block] += 1
            # As a real one does: the next read spoils what this one returned.
            self._buffer[:] = b"\xee" * len(self._buffer)
            self._buffer = bytearray(self.data[offset : offset + size])
            return memoryview(self._buffer)
        finally:
            self.at_once -= 1

    async def read_into(self, buffer: memoryview, offset: int) -> Filled:
        data = await self.read(offset, min(len(buffer), max(0, len(self.data) - offset)))
        buffer[: len(data)] = data
        version = self.version if self.remembered is None else self.remembered
        return Filled(len(data), version, certain=self.remembered is None)

    async def stat(self) -> Stat:
        self._use()
        self.asked += 1
        await trio.lowlevel.checkpoint()
        return self.attributes()

    def attributes(self) -> Stat:
        """What `stat` answers."""
        return replace(_STAT, size=len(self.data), version=self.version)

    def _use(self) -> None:
        self.used_closed += self.closed

    async def change(self, changes: Changes) -> Stat:
        raise StoreError("not here")

    async def copy_to(self, target: int, size: int) -> None:
        raise StoreError("not here")

    async def sync(self) -> None:
        raise StoreError("not here")

    def close(self) -> None:
        self.closed = True


@asynccontextmanager
async def running(directory: Path, limit: int = LIMIT, memory: int = 64 * M) -> AsyncIterator[Cache]:
    """A cache with its service, closed at the end as the daemon does.

    `limit` is for blocks: what folders and index take at the start comes on top of it.
    Files that are to be adopted begin with "staged" and lie beside the blocks.
    """
    cache = Cache.open(directory, limit, memory, staged=lambda: staged_bytes(directory))
    cache._room.total_bytes += cache._room._overhead.bytes
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        try:
            yield cache
        finally:
            nursery.cancel_scope.cancel()
    cache.close()


async def settled(cache: Cache) -> None:
    """Wait until nothing is under way, from the store or to the disk."""
    traffic = cache._traffic
    while traffic.in_flight > traffic.lingering_bytes or traffic.waiting:
        await trio.lowlevel.checkpoint()


async def warm(cache: Cache, source: Source) -> None:
    """Read all of it, and wait until it is in the cache file."""
    file = cache.attach(source.version, len(source.data))
    for offset in range(0, len(source.data), M):
        assert bytes(await file.read(offset, M, source)) == source.data[offset : offset + M]
        await settled(cache)
    file.detach()


def has(cache: Cache, source: Source) -> bool:
    """Whether all of it is kept; no use of it for those who decide what stays."""
    file = cache._shelf.find(source.version, len(source.data))
    cache._shelf.hold(file)
    cache._shelf.load_inline(file)
    complete = len(file.present or ()) == block_count(file.size)
    cache._shelf.release(file)
    return complete


def staged_bytes(directory: Path) -> int:
    """What the files take that are staged in the directory, as `commit.staging` would count it."""
    return sum(path.stat().st_blocks * 512 for path in directory.glob("staged*"))


def cache_files(directory: Path) -> list[Path]:
    """The local files that hold blocks."""
    return sorted(path for path in (directory / "blocks").rglob("*") if path.is_file())


def allocated(directory: Path) -> int:
    """What they take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in cache_files(directory))
