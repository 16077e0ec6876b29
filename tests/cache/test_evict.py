"""Bounds: the limit holds, with files open, files larger than it, and blocks that leave under readers."""

from __future__ import annotations

import errno
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cache.source import (
    M,
    Source,
    allocated,
    cache_files,
    content,
    has,
    running,
    settled,
    sums_of,
    warm,
)
from volfs.cache.blocks import read_into
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.fill import Cache, CachedFile
from volfs.core.readahead import Readahead
from volfs.core.spans import cost_bytes
from volfs.core.versions import Version


async def test_limit_with_files_held_open(tmp_path: Path) -> None:
    """B1: open files give blocks too, so that the disk never holds more than the limit."""
    sources = [Source(content(2 * M, seed=i), b"v%d" % i) for i in range(12)]
    async with running(tmp_path, limit=6 * M) as cache:
        files = []
        for source in sources:
            file = cache.attach(source.version, 2 * M)
            files.append(file)
            assert bytes(await file.read(0, 2 * M, source)) == source.data
            await settled(cache)
            assert allocated(tmp_path) <= cache.used_bytes <= 6 * M
        with trio.fail_after(20):
            while not files[-1].complete:  # what found no room while others were being read
                assert bytes(await files[-1].read(0, 2 * M, sources[-1])) == sources[-1].data
                await settled(cache)
        assert 2 * M <= cache.used_bytes <= 6 * M
        assert not files[0].complete
        for file, source in zip(files, sources, strict=True):
            assert bytes(await file.read(0, 2 * M, source)) == source.data
            file.detach()


async def test_file_larger_than_the_limit(tmp_path: Path) -> None:
    """B1: a file larger than the cache passes through it, fetched once, at no time above the limit."""
    source = Source(content(30 * M))
    async with running(tmp_path, limit=8 * M) as cache:
        file = cache.attach(source.version, len(source.data))
        cursor = Readahead()
        for offset in range(0, 30 * M, M):
            assert bytes(await file.read(offset, M, source, cursor)) == source.data[offset : offset + M]
            assert allocated(tmp_path) <= 8 * M
        assert max(source.fetched.values()) == 1
        assert bytes(await file.read(29 * M, M, None)) == source.data[29 * M :]
        file.detach()


@pytest.mark.parametrize("limit", [0, 4096, B - 1, B])
async def test_limit_smaller_than_a_block(tmp_path: Path, limit: int) -> None:
    """A cache without room serves through."""
    source = Source(content(3 * M))
    async with running(tmp_path, limit=limit) as cache:
        file = cache.attach(source.version, 3 * M)
        for offset in (0, 5, M, 3 * M - 10):
            assert bytes(await file.read(offset, M, source)) == source.data[offset : offset + M]
            await settled(cache)
            assert allocated(tmp_path) <= limit
        file.detach()


async def test_file_used_longest_ago_goes_first(tmp_path: Path) -> None:
    """Where nothing was read twice, what was read last is kept."""
    sources = [Source(content(M, seed=i), b"v%d" % i) for i in range(12)]
    async with running(tmp_path, limit=5 * M) as cache:
        for source in sources:
            await warm(cache, source)
            await cache._shelf.flush()
        kept = [has(cache, source) for source in sources]
    assert kept[:7] == [False] * 7
    assert kept[8:] == [True] * 4


async def test_evict_all(tmp_path: Path) -> None:
    """Everything goes, of open and of closed files, and comes back by a fetch."""
    one, two = Source(content(2 * M), b"one"), Source(content(20 * M, seed=2), b"two")
    async with running(tmp_path) as cache:
        await warm(cache, one)
        await warm(cache, two)
        await cache._shelf.flush()
        file = cache.attach(one.version, 2 * M)
        await file.read(0, 10, None)
        await cache.evict_all()
        assert cache.used_bytes == 0
        assert allocated(tmp_path) == 0
        assert bytes(await file.read(0, 2 * M, one)) == one.data
        file.detach()
        await warm(cache, two)
    assert set(one.fetched.values()) == set(two.fetched.values()) == {2}
    assert cache.corrupt_blocks == 0


async def test_part_of_a_large_file_that_nobody_uses(tmp_path: Path) -> None:
    """A large closed file gives as many blocks as are needed and keeps the others, also over a restart."""
    large, small = Source(content(30 * M), b"large"), Source(content(2 * M, seed=2), b"small")
    async with running(tmp_path, limit=31 * M) as cache:
        await warm(cache, large)
        await cache._shelf.flush()
        await warm(cache, small)
        assert allocated(tmp_path) <= 31 * M
    async with running(tmp_path, limit=31 * M) as cache:
        assert 28 * M <= cache.used_bytes <= 31 * M
        file = cache.attach(large.version, 30 * M)
        assert bytes(await file.read(4 * M, 26 * M, None)) == large.data[4 * M :]
        file.detach()
        assert cache.corrupt_blocks == 0


async def test_file_system_that_cannot_punch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without holes whole files leave, and the limit holds all the same."""
    monkeypatch.setattr("volfs.cache.fill.can_punch", lambda _: False)
    sources = [Source(content(2 * M, seed=i), b"v%d" % i) for i in range(6)]
    async with running(tmp_path, limit=5 * M) as cache:
        for source in sources:
            await warm(cache, source)
            assert allocated(tmp_path) <= 5 * M
        held = [cache.attach(source.version, 2 * M) for source in sources]
        for file, source in zip(held, sources, strict=True):
            assert bytes(await file.read(0, 2 * M, source)) == source.data
            await settled(cache)
            assert allocated(tmp_path) <= 5 * M
            file.detach()


async def test_adopt_makes_room(tmp_path: Path) -> None:
    """A committed file pushes older blocks out."""
    source, data = Source(content(4 * M)), content(3 * M, seed=9)
    (tmp_path / "staged").write_bytes(data)
    async with running(tmp_path, limit=5 * M) as cache:
        await warm(cache, source)
        await cache.adopt(Version(b"new"), 3 * M, tmp_path / "staged", sums_of(data))
        assert allocated(tmp_path) <= cache.used_bytes <= 5 * M
        file = cache.attach(Version(b"new"), 3 * M)
        assert bytes(await file.read(0, 3 * M, None)) == data
        file.detach()


@pytest.mark.parametrize("nowait", ["in memory", "on the disk", "tmpfs"])
async def test_eviction_races_with_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nowait: str
) -> None:
    """R4, B1: readers in and out of threads, with blocks leaving all the time, never get a wrong byte."""
    if nowait != "in memory":
        real = os.preadv

        def refuse(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
            if flags:
                code = errno.EAGAIN if nowait == "on the disk" else errno.EOPNOTSUPP
                raise OSError(code, os.strerror(code))
            return real(fd, buffers, offset)

        monkeypatch.setattr(os, "preadv", refuse)
    sources = [Source(content(4 * M + 999, seed=i), b"v%d" % i) for i in range(3)]
    wrong: list[tuple[bytes, int, int]] = []
    async with running(tmp_path, limit=4 * M) as cache:

        async def reader(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(150):
                source = rng.choice(sources)
                file = cache.attach(source.version, len(source.data))
                for _ in range(3):
                    offset, size = rng.randrange(len(source.data)), rng.choice([10, 4096, 300_000, M])
                    found = bytes(await file.read(offset, size, source))
                    if found != source.data[offset : offset + size]:
                        wrong.append((source.version, offset, size))
                    await trio.lowlevel.checkpoint()
                file.detach()

        async def evictor(done: trio.Event) -> None:
            while not done.is_set():
                await cache.evict_all()
                assert allocated(tmp_path) <= 4 * M

        done = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(evictor, done)
            async with trio.open_nursery() as readers:
                for seed in range(6):
                    readers.start_soon(reader, seed)
            done.set()
        await settled(cache)
        assert cache.corrupt_blocks == 0
    assert wrong == []


async def test_block_under_a_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that a thread is reading is not punched under it."""
    source = Source(content(M))
    entered, release = threading.Event(), threading.Event()
    found = []

    def slow(fd: int, data: memoryview, offset: int) -> list[int]:
        entered.set()
        assert release.wait(10)
        return read_into(fd, data, offset)

    async with running(tmp_path) as cache:
        await warm(cache, source)
        file = cache.attach(source.version, M)
        await file.read(0, M, None)
        file._file.nowait = False  # as on tmpfs
        monkeypatch.setattr("volfs.cache.fetching.read_into", slow)

        async def read() -> None:
            found.append(bytes(await file.read(5, 10, None)))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            assert await trio.to_thread.run_sync(entered.wait, 10)
            await cache.evict_all()
            assert cache.used_bytes == cost_bytes(1, False, M)  # the one block
            release.set()
        await cache.evict_all()
        assert cache.used_bytes == 0
        file.detach()
    assert found == [source.data[5:15]]


async def test_nothing_is_left_open(tmp_path: Path, open_descriptors: Callable[[], int]) -> None:
    """Descriptors and tables end with the files: what nobody uses is in the index only."""
    before = open_descriptors()
    async with running(tmp_path) as cache:
        for i in range(30):
            await warm(cache, Source(content(5000, seed=i), b"v%d" % i))
        await cache._shelf.flush()
        assert len(cache._shelf.hot) == 0
        assert not cache._attached
    assert len(cache_files(tmp_path)) == 30
    assert open_descriptors() <= before


@pytest.fixture
def open_descriptors() -> Callable[[], int]:
    """How many descriptors this process has open."""
    return lambda: len(os.listdir("/proc/self/fd"))


SIZES = (0, 1, 4096, B, B + 1, 3 * B, 7 * B + 12345)

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("read"), st.integers(0, 6), st.integers(0, 8 * B), st.integers(1, 3 * B)),
        st.tuples(st.just("hold"), st.integers(0, 6)),
        st.tuples(st.just("change"), st.integers(0, 6)),
        st.tuples(st.just("chmod"), st.integers(0, 6)),
        st.tuples(st.just("write"), st.integers(0, 6)),
        st.tuples(st.sampled_from(["evict", "restart", "flush", "damage"])),
    ),
    min_size=5,
    max_size=60,
)


class Model:
    """Files by number, each with its current content; the cache is asked for them all the time."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = limit
        self.sources = [Source(content(size, seed=i), b"%d.0" % i) for i, size in enumerate(SIZES)]
        self.versions = 0
        self.held: dict[int, CachedFile] = {}
        self.cursors = [Readahead() for _ in SIZES]

    def next_version(self, number: int) -> Version:
        self.versions += 1
        return Version(b"%d.%d" % (number, self.versions))

    def drop(self, number: int) -> None:
        if number in self.held:
            self.held.pop(number).detach()

    async def step(self, cache: Cache, operation: tuple[str, *tuple[int, ...]]) -> None:
        name, *rest = operation
        if name == "evict":
            return await cache.evict_all()
        if name == "flush":
            return await cache._shelf.flush()
        if name == "damage":
            for path in cache_files(self.directory)[:1]:
                os.truncate(path, path.stat().st_size // 2)
            return None
        number = rest[0]
        source = self.sources[number]
        if name == "hold":
            if number in self.held:
                return self.drop(number)
            self.held[number] = cache.attach(source.version, len(source.data))
        elif name == "change":
            self.drop(number)
            cache.forget(source.version)
            self.sources[number] = Source(
                content(len(source.data), seed=100 + self.versions), self.next_version(number)
            )
        elif name == "chmod":
            new = self.next_version(number)
            cache.rekey(source.version, new)
            source.version = new
        elif name == "write":
            self.drop(number)
            data = content(len(source.data), seed=100 + self.versions)
            new_source = self.sources[number] = Source(data, self.next_version(number))
            staged = self.directory / "staged"
            staged.write_bytes(data)
            await cache.adopt(new_source.version, len(data), staged, sums_of(data))
            assert not staged.exists()
        else:
            _, offset, size = rest
            file = cache.attach(source.version, len(source.data))
            found = bytes(await file.read(offset, size, source, self.cursors[number]))
            file.detach()
            assert found == source.data[offset : offset + size]
        return None


@settings(max_examples=40, deadline=None)
@given(OPERATIONS, st.sampled_from([B - 1, 2 * B, 5 * B, 100 * B]), st.random_module())
def test_model(operations: list[tuple[str, *tuple[int, ...]]], limit: int, schedule: object) -> None:
    """Whatever happens in whatever order: right bytes, under the limit, accounts that agree with the disk."""

    async def run() -> None:
        with TemporaryDirectory() as name:
            model = Model(Path(name), limit)
            rest = list(operations)
            while True:
                async with running(model.directory, limit=limit, memory=8 * B) as cache:
                    while rest:
                        operation = rest.pop(0)
                        if operation[0] == "restart":
                            break
                        await model.step(cache, operation)
                        assert allocated(model.directory) <= max(limit, 0)
                    await settled(cache)
                    shelf = cache._shelf
                    assert cache._room.reserved == 0
                    assert shelf.used_bytes >= allocated(model.directory)
                    for number in list(model.held):
                        model.drop(number)
                    await shelf.flush()
                    assert not shelf.hot
                    query = "SELECT TOTAL(cost * (used < 0)), TOTAL(cost * (used >= 0)) FROM file"
                    guests, residents = shelf.index._reader.execute(query).fetchone()
                    assert (shelf.queues.guest_bytes, shelf.queues.resident_bytes) == (guests, residents)
                    assert shelf.used_bytes == guests + residents
                if not rest:
                    break

    trio.run(run)


async def test_store_faster_than_the_cache_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B2: what the disk cannot take in time is not kept in memory for it."""
    source = Source(content(32 * M))
    release = trio.Event()

    async with running(tmp_path, memory=4 * M) as cache:
        reserve = cache._room.reserve

        async def stuck(size: int) -> bool:
            await release.wait()
            return await reserve(size)

        monkeypatch.setattr(cache._room, "reserve", stuck)
        file = cache.attach(source.version, len(source.data))
        for offset in range(0, 32 * M, M):
            assert bytes(await file.read(offset, M, source)) == source.data[offset : offset + M]
            assert cache._traffic.in_flight <= 4 * M + M  # and the one that was waited for
        release.set()
        await settled(cache)
        file.detach()
