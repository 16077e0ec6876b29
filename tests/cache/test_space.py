"""Space: staged bytes and clean blocks under one limit, what is counted, and a disk that is full."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.cache.source import M, Source, allocated, content, running, settled, sums_of, warm
from tests.disk import du, fill, needs_root, small_disk
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.fill import Cache, CachedFile
from volfs.core.readahead import Readahead
from volfs.core.spans import block_count
from volfs.core.versions import Version


@pytest.fixture(params=[pytest.param(kind, marks=needs_root) for kind in ("tmpfs", "ext4")])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 24 MiB."""
    with small_disk(request.param, tmp_path / "disk", 24 * M) as at:
        yield at


async def kept(cache: Cache, file: CachedFile, source: Source) -> None:
    """Read all until it is kept: a full disk is asked again after a moment, not at once."""
    with trio.fail_after(20):
        while not file.complete:
            assert bytes(await file.read(0, len(source.data), source)) == source.data
            await settled(cache)
            await trio.sleep(0)


async def test_clean_blocks_yield_to_staged_bytes(tmp_path: Path) -> None:
    """B1: what staged files take is not there for blocks, down to none; then reads go past the cache."""
    staged = 0
    sources = [Source(content(M, seed=i), b"v%d" % i) for i in range(8)]
    async with running(tmp_path, limit=10 * M) as cache:
        cache._room._staged = lambda: staged
        for source in sources:
            await warm(cache, source)
        for staged in (3 * M, 6 * M, 9 * M, 12 * M):
            await cache.shrink()
            assert cache.used_bytes + staged <= max(10 * M, staged)
            assert allocated(tmp_path) <= cache.used_bytes
            assert cache.used_bytes >= min(8 * M, 10 * M - staged) - 2 * M  # no more than that, and a file
        assert cache.used_bytes == allocated(tmp_path) == 0
        for source in sources:
            file = cache.attach(source.version, M)
            cursor = Readahead()
            for offset in range(0, M, B):
                assert bytes(await file.read(offset, B, source, cursor)) == source.data[offset : offset + B]
                await settled(cache)
            file.detach()
            assert max(source.fetched.values()) == 2  # nothing ahead that could not be kept
        assert cache.used_bytes == allocated(tmp_path) == 0
        staged = 0
        file = cache.attach(sources[0].version, M)
        await kept(cache, file, sources[0])
        file.detach()


async def test_nothing_to_give_is_not_looked_for_at_every_write(tmp_path: Path) -> None:
    """A writer over the limit pays for one look at blocks that are being read, not for one at each write."""
    source, looked = Source(content(M)), 0
    async with running(tmp_path, limit=2 * M) as cache:
        await warm(cache, source)
        cache._room._staged = lambda: 3 * M
        evict = cache._room._evict

        async def counted(wanted: int) -> int:
            nonlocal looked
            looked += 1
            return await evict(wanted)

        cache._room._evict = counted  # type: ignore[method-assign]
        file = cache.attach(source.version, M)
        await file.read(0, 10, None)
        file._file.pin(range(4))
        for _ in range(100):
            await cache.shrink()
        assert looked == 1
        file._file.unpin(range(4))
        with trio.fail_after(10):
            while cache.used_bytes:
                await cache.shrink()
                await trio.sleep(0)
        file.detach()


async def test_adopted_bytes_are_counted_once(tmp_path: Path) -> None:
    """A committed file of more than half the limit becomes a cache file, and pushes nothing out that fits."""
    small, data = Source(content(2 * M), b"small"), content(7 * M, seed=9)
    (tmp_path / "staged").write_bytes(data)
    async with running(tmp_path, limit=10 * M) as cache:
        await warm(cache, small)
        await cache.shrink()
        await cache.adopt(Version(b"new"), 7 * M, tmp_path / "staged", sums_of(data))
        for version, expected in ((Version(b"new"), data), (small.version, small.data)):
            file = cache.attach(version, len(expected))
            assert bytes(await file.read(0, len(expected), None)) == expected
            file.detach()
        assert allocated(tmp_path) <= cache.used_bytes <= 10 * M


async def test_folders_and_index_count(tmp_path: Path) -> None:
    """B1: what lies in the directory stays below the limit, not only what the blocks take."""
    source = Source(content(20 * M))
    cache = Cache.open(tmp_path, 8 * M, 64 * M)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        file = cache.attach(source.version, 20 * M)
        for offset in range(0, 20 * M, M):
            assert bytes(await file.read(offset, M, source)) == source.data[offset : offset + M]
            await settled(cache)
            assert du(tmp_path) <= 8 * M + B
        assert cache.used_bytes >= 5 * M
        file.detach()
        nursery.cancel_scope.cancel()
    cache.close()


@pytest.mark.timeout(240)
async def test_twenty_thousand_tiny_files(tmp_path: Path) -> None:
    """B1: inodes, names and the index count: the directory stays below the limit with tiny files, too."""
    limit = 24 * M
    cache = Cache.open(tmp_path, limit, 64 * M)
    largest = 0
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        for i in range(20_000):
            await warm(cache, Source(b"%d" % i, b"v%d" % i))
            if i % 250 == 0:
                largest = max(largest, du(tmp_path))
                assert largest <= limit + B
        await cache._room.flush()
        assert du(tmp_path) <= limit + B
        assert largest >= limit // 3  # it was filled, not kept empty
        nursery.cancel_scope.cancel()
    cache.close()
    assert du(tmp_path) <= limit + B


async def test_disk_smaller_than_the_limit(disk: Path) -> None:
    """The cache goes on working in the space there is: what was read last is kept, what is old has left."""
    sources = [Source(content(2 * M, seed=i), b"v%d" % i) for i in range(30)]
    async with running(disk, limit=1 << 30) as cache:
        for source in sources:
            await warm(cache, source)
        file = cache.attach(sources[-1].version, 2 * M)
        await kept(cache, file, sources[-1])
        file.detach()
        assert cache.used_bytes >= 10 * M
        assert allocated(disk) <= cache.used_bytes
    assert max(sources[5].fetched.values()) == 1


async def test_passes_over_twice_the_disk(disk: Path) -> None:
    """B1b: where the disk is the limit, what stays is judged by what it has space for."""
    sources = [Source(content(M - 8192 * i, seed=i), b"v%d" % i) for i in range(44)]
    blocks = sum(block_count(len(source.data)) for source in sources)
    async with running(disk, limit=1 << 30) as cache:
        for _ in range(3):
            for source in sources:
                await warm(cache, source)
    fetched = sum(sum(source.fetched.values()) for source in sources)
    assert fetched <= blocks * (1 + 2 * 0.7)


async def test_full_disk_gives_way_to_a_writer(disk: Path) -> None:
    """A writer gets the space of clean blocks, readers do not take it first, and the cache fills again."""
    source = Source(content(12 * M))
    async with running(disk, limit=1 << 30) as cache:
        await warm(cache, source)
        hog = fill(disk)
        before = cache.used_bytes
        assert await cache.yield_space(4 * M)
        assert before - 5 * M <= cache.used_bytes <= before - 4 * M
        file = cache.attach(source.version, 12 * M)
        assert bytes(await file.read(0, 12 * M, source)) == source.data  # not kept: the writer comes first
        await settled(cache)
        written = os.open(disk / "written", os.O_WRONLY | os.O_CREAT)
        data = memoryview(content(4 * M - 64 * 1024, seed=7))
        while data:
            data = data[os.write(written, data) :]
        os.close(written)
        while await cache.yield_space(4 * M):
            pass
        assert cache.used_bytes == allocated(disk) == 0
        assert bytes(await file.read(0, 12 * M, source)) == source.data
        hog.unlink()
        await kept(cache, file, source)
        file.detach()
    assert cache.corrupt_blocks == 0


async def test_index_fails_while_files_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files whose rows could not be deleted have left once, not again each time that room is made."""
    sources = [Source(content(M, seed=i), b"v%d" % i) for i in range(4)]
    async with running(tmp_path) as cache:
        for source in sources:
            await warm(cache, source)
        await cache._shelf.flush()
        with monkeypatch.context() as broken:
            broken.setattr(cache._shelf.index, "apply", _full)
            await cache.evict_all()
            await warm(cache, sources[0])
            used = cache.used_bytes
            await cache._room.shrink()
            await cache._room._make_way(60 * M)
            assert used == cache.used_bytes == cache._shelf.queues.resident_bytes >= allocated(tmp_path) >= M
        await cache.evict_all()
        queues = cache._shelf.queues
        assert cache.used_bytes == queues.resident_bytes == queues.guest_bytes == allocated(tmp_path) == 0
        assert cache._shelf.index.totals()[2] == 0


def _full(batch: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


async def test_index_on_a_full_disk(disk: Path) -> None:
    """An index that has no room to grow costs no read; it hears everything once it has."""
    sources = [Source(content(3000, seed=i), b"v%d" % i) for i in range(600)]
    async with running(disk, limit=1 << 30) as cache:
        for source in sources[:300]:
            await warm(cache, source)
        await cache._room.flush()
        # Written back, the log begins anew and would have room: fill it, so that the next batch needs more.
        for source in sources[300:]:
            await warm(cache, source)
        hog = fill(disk)
        await cache._room.flush()
        for source in sources:
            file = cache.attach(source.version, 3000)
            assert bytes(await file.read(0, 3000, source)) == source.data
            file.detach()
        fresh = Source(content(M, seed=1000), b"fresh")
        file = cache.attach(fresh.version, M)
        assert bytes(await file.read(0, M, fresh)) == fresh.data
        file.detach()
        hog.unlink()
        file = cache.attach(fresh.version, M)
        await kept(cache, file, fresh)
        file.detach()
        await cache._room.flush()
    async with running(disk, limit=1 << 30) as cache:
        file = cache.attach(fresh.version, M)
        assert file.complete
        assert bytes(await file.read(0, M, None)) == fresh.data
        file.detach()
        assert cache.corrupt_blocks == 0
