"""What stays when data is read again and again, through the whole cache: files, blocks, index, restart."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.cache.source import M, Source, allocated, content, has, running, settled, sums_of, warm
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.fill import Cache
from volfs.cache.overhead import Overhead
from volfs.core.readahead import Readahead
from volfs.core.spans import block_count, cost_bytes
from volfs.core.versions import Version

K = 1 << 10
U = 256 * K  # of reads of large files


@pytest.fixture(autouse=True)
def folders_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log of the index takes up to 4 MiB, as much as these caches: leave it out of their limits."""

    def measure(self: Overhead) -> None:
        self.bytes = self._folders

    monkeypatch.setattr(Overhead, "measure", measure)


def data_set(count: int, name: str = "a", size: int = 48 * K) -> list[Source]:
    """Files of about `size` bytes."""
    rng = random.Random(name)
    return [
        Source(content(rng.randrange(size // 2, size + size // 2), seed=i), f"{name}{i}".encode())
        for i in range(count)
    ]


def cost_of(sources: list[Source]) -> int:
    """What they take on the disk."""
    sizes = [len(source.data) for source in sources]
    return sum(cost_bytes(block_count(size), True, size) for size in sizes)


async def read_all(cache: Cache, sources: list[Source]) -> float:
    """Read each once, in this order; the part of the bytes that came from the cache."""
    fetched = 0
    for source in sources:
        before = source.reads
        await warm(cache, source)
        fetched += len(source.data) if source.reads > before else 0
    return 1 - fetched / sum(len(source.data) for source in sources)


@pytest.mark.parametrize("shuffled", [True, False])
async def test_three_passes_over_twice_the_cache(tmp_path: Path, shuffled: bool) -> None:
    """B1b: from the second pass on four tenths and more of the bytes are hits; half of them fit."""
    data = data_set(150)
    rng = random.Random(1)
    async with running(tmp_path, limit=cost_of(data) // 2) as cache:
        ratios = []
        for _ in range(4):
            ratios.append(await read_all(cache, rng.sample(data, len(data)) if shuffled else data))
            assert allocated(tmp_path) <= cache.used_bytes <= cost_of(data) // 2
        kept = [source for source in data if has(cache, source)]
    assert ratios[0] == 0
    assert min(ratios[1:]) >= 0.44
    assert cost_of(kept) >= cost_of(data) * 0.44


async def test_passes_go_on_after_a_restart(tmp_path: Path) -> None:
    """B1b, R5: the queues are the same after a start, and the first pass after it hits."""
    data = data_set(150)
    rng = random.Random(2)
    for passes in (3, 2):
        async with running(tmp_path, limit=cost_of(data) // 2) as cache:
            ratios = [await read_all(cache, rng.sample(data, len(data))) for _ in range(passes)]
            guests, residents = cache._shelf.queues.guest_bytes, cache._shelf.queues.resident_bytes
            assert 0 < guests < residents
        async with running(tmp_path, limit=cost_of(data) // 2) as cache:
            assert cache._shelf.queues.guest_bytes == guests
            assert cache._shelf.queues.resident_bytes == residents
    assert min(ratios) >= 0.40


async def test_another_data_set_takes_over(tmp_path: Path) -> None:
    """B1b: residents that nobody reads any more leave; the new set is hit from its fourth pass on."""
    old, new = data_set(100), data_set(100, "b")
    rng = random.Random(3)
    async with running(tmp_path, limit=cost_of(old) // 2) as cache:
        for _ in range(3):
            await read_all(cache, rng.sample(old, len(old)))
        ratios = [await read_all(cache, rng.sample(new, len(new))) for _ in range(5)]
        kept = cost_of([source for source in new if has(cache, source)])
        assert kept >= cost_of(new) * 0.42
    assert min(ratios[3:]) >= 0.40


async def test_passes_over_one_large_file(tmp_path: Path) -> None:
    """B1b: of a file twice the cache the blocks that came first stay, whether it is opened anew or not."""
    size = 96 * U
    source = Source(content(size))
    async with running(tmp_path, limit=size // 2) as cache:
        file = cache.attach(source.version, size)
        for reopened in (False, False, True, True):
            if reopened:
                file.detach()
                file = cache.attach(source.version, size)
            source.fetched.clear()
            cursor = Readahead()
            for offset in range(0, size, U):
                assert bytes(await file.read(offset, U, source, cursor)) == source.data[offset : offset + U]
                await settled(cache)
                assert allocated(tmp_path) <= size // 2
            assert max(source.fetched.values()) == 1  # nothing is thrown away before it is read
        assert len(source.fetched) <= block_count(size) * 0.6
        file.detach()


async def test_what_is_ahead_is_read_before_it_leaves(tmp_path: Path) -> None:
    """Windows larger than the place of guests push residents out, not each other."""
    old = data_set(60, size=U)
    source = Source(content(64 * U), b"large")
    async with running(tmp_path, limit=cost_of(old) // 2) as cache:
        for _ in range(3):
            await read_all(cache, old)
        queues = cache._shelf.queues
        assert queues.admission.patience_bytes > cost_of(old) // 2
        file = cache.attach(source.version, len(source.data))
        cursor = Readahead()
        most = 0
        for turn in range(0, 11 * U, U):
            for start in range(0, len(source.data), 16 * U):
                offset = start + turn
                assert bytes(await file.read(offset, U, source, cursor)) == source.data[offset : offset + U]
                await settled(cache)
                most = max(most, len(file._file.ahead))
        assert most * B > cost_of(old) // 2 - queues.resident_bytes
        assert set(source.fetched.values()) == {1}
        file.detach()
        assert not file._file.ahead


async def test_what_nobody_came_for_leaves(tmp_path: Path) -> None:
    """Blocks ahead of a reader that went elsewhere give way once as much as the cache was read."""
    source, other = Source(content(16 * U), b"left"), Source(content(64 * U, seed=2), b"other")
    async with running(tmp_path, limit=16 * U) as cache:
        file = cache.attach(source.version, len(source.data))
        cursor = Readahead()
        for offset in (0, U):
            await file.read(offset, U, source, cursor)
        await settled(cache)
        ahead = len(file._file.ahead)
        assert ahead * B == M
        large = cache.attach(other.version, len(other.data))
        for offset in range(0, 64 * U, U):
            await large.read(offset, U, other)
            await settled(cache)
            assert len(file._file.present or ()) >= ahead or offset >= 14 * U
        assert not file._file.present
        file.detach()
        large.detach()


async def test_a_file_used_more_often_moves_in(tmp_path: Path) -> None:
    """Three uses while a pass goes on, and a newcomer is a resident though all residents live."""
    data = data_set(100)
    often = Source(content(40 * K, seed=999), b"often")
    async with running(tmp_path, limit=cost_of(data) // 2) as cache:
        for _ in range(2):
            await read_all(cache, data)
        for start in range(0, 100, 10):
            await read_all(cache, [*data[start : start + 10], often])
        often.reads = 0
        await read_all(cache, data)
        assert has(cache, often)
        await warm(cache, often)
        assert not often.reads


async def test_a_file_read_from_memory_moves_in(tmp_path: Path) -> None:
    """Reads that its cache file had no part in are uses: when it comes, it comes to stay."""
    data = data_set(100)
    often = Source(content(40 * K, seed=999), b"often")
    seldom = [Source(content(40 * K, seed=1000 + i), b"seldom%d" % i) for i in range(6)]
    async with running(tmp_path, limit=cost_of(data) // 2) as cache:
        queues = cache._shelf.queues
        for _ in range(2):
            await read_all(cache, data)
        for start in range(0, 30, 10):
            await read_all(cache, data[start : start + 10])
            queues.served(often.version, 40 * K, 0, 30 * K)
            queues.served(often.version, 40 * K, 30 * K, 10 * K)
        for source in (*seldom, often):
            (tmp_path / "staged").write_bytes(source.data)
            await cache.adopt(source.version, 40 * K, tmp_path / "staged", sums_of(source.data))
        await read_all(cache, data)
        assert has(cache, often)
        assert not has(cache, seldom[-1])


async def test_files_that_are_wanted_displace_what_lives(tmp_path: Path) -> None:
    """A set that somebody brings in on purpose is there whole, as long as another one would be waited for."""
    data, wanted = data_set(100), data_set(40, "b")
    async with running(tmp_path, limit=cost_of(data) // 2) as cache:
        for _ in range(2):
            await read_all(cache, data)
        for source in wanted:
            file = cache.attach(source.version, len(source.data))
            cache._shelf.queues.invite(file._file)
            await file.read(0, len(source.data), source)
            await settled(cache)
            file.detach()
        await read_all(cache, data)
        assert all(has(cache, source) for source in wanted)


async def test_a_written_file_leaves_before_what_is_read_again(tmp_path: Path) -> None:
    """Its bytes took the place of others while they were staged; committed, they are guests."""
    data, written = data_set(100, size=96 * K), content(2 * M, seed=9)
    async with running(tmp_path, limit=cost_of(data) // 2) as cache:
        for _ in range(2):
            await read_all(cache, data)
        (tmp_path / "staged").write_bytes(written)
        await cache.shrink()
        before = [source for source in data if has(cache, source)]
        await cache.adopt(Version(b"new"), len(written), tmp_path / "staged", sums_of(written))
        new = Source(written, b"new")
        assert has(cache, new)
        await read_all(cache, data)
        await read_all(cache, data)
        assert not has(cache, new)
        assert sum(has(cache, source) for source in before) >= len(before) - 1


async def test_a_file_that_leaves_whole_only(tmp_path: Path) -> None:
    """Somebody may have its local file open: no hole is made in it, only its name goes."""
    source = Source(content(20 * M), b"handed")
    async with running(tmp_path, limit=24 * M) as cache:
        held = cache.attach(source.version, 20 * M)
        await warm(cache, source)
        file = held._file
        file.whole_only = True
        taken = os.open(file.path, os.O_RDONLY)
        try:
            await cache.evict_all()
            for i in range(3):
                await warm(cache, Source(content(4 * M, seed=i), b"%d" % i))
            assert held.complete
            cache._shelf.mark(file)
            held.detach()
            await cache._room._evict(M)
            assert not os.path.exists(file.path)
            assert os.pread(taken, 20 * M, 0) == source.data
            assert os.fstat(taken).st_blocks * 512 >= 20 * M
        finally:
            os.close(taken)
