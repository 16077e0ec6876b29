"""Flights: memory that is nobody's too early, what is fetched ahead, and what the local disk is asked for."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from collections import deque
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.cache.source import M, Source, cache_files, content, running, settled, warm
from tests.disk import needs_root, small_disk
from volfs.cache import fetching
from volfs.cache.blocks import read_direct, read_into
from volfs.cache.cachefile import CacheFile
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.fill import Cache
from volfs.cache.flight import Purpose
from volfs.core.readahead import Readahead
from volfs.core.spans import block_count
from volfs.store.base import Filled


class Quick(Source):
    """Answers at once, in the step in which it is asked."""

    async def read_into(self, buffer: memoryview, offset: int) -> Filled:
        data = self.data[offset : offset + len(buffer)]
        buffer[: len(data)] = data
        self.fetched.update(range(offset // B, (offset + len(data) - 1) // B + 1))
        return Filled(len(data), self.version, certain=True)


async def test_memory_is_not_used_again_before_it_was_read(tmp_path: Path) -> None:
    """Flights that end before their readers wake leave them their bytes, however busy the memory is."""
    source = Quick(content(24 * M))
    wrong = []
    async with running(tmp_path, limit=2 * B) as cache:  # room for none of it: flights end as they land

        async def read(number: int) -> None:
            offset = number * M - (number % 3) * 5000  # some of them from two flights
            data = bytes(await file.read(offset, M, source))
            if data != source.data[offset : offset + M]:
                wrong.append(number)

        file = cache.attach(source.version, len(source.data))
        for _ in range(3):
            async with trio.open_nursery() as nursery:
                for number in range(1, 24):
                    nursery.start_soon(read, number)
        file.detach()
        await settled(cache)
        assert cache._traffic.in_flight == 0
    assert wrong == []


async def test_a_disk_that_stands_still_costs_no_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2, R9a: what cannot be written in time is served from memory, fetched once, within the budget."""
    source = Source(content(48 * M))
    most = 0
    async with running(tmp_path, memory=16 * M) as cache:

        async def stuck(size: int) -> bool:
            await trio.sleep_forever()
            return False

        async def watch(_: int) -> None:
            nonlocal most
            most = max(most, cache._traffic.in_flight)

        source.on_read = watch
        monkeypatch.setattr(cache._room, "reserve", stuck)
        file = cache.attach(source.version, len(source.data))
        cursor = Readahead()
        for offset in range(0, 48 * M, M):
            assert bytes(await file.read(offset, M, source, cursor)) == source.data[offset : offset + M]
        assert set(source.fetched.values()) == {1}
        assert source.most_at_once > 1
        assert most <= 16 * M + M
        file.detach()


async def test_nobody_comes_for_what_was_fetched_ahead(tmp_path: Path) -> None:
    """B2: its memory is free again when the file is closed, and before that for others."""
    sources = [Source(content(24 * M, seed=i), b"v%d" % i) for i in range(4)]
    async with running(tmp_path, limit=200 * M, memory=16 * M) as cache:
        files = []
        for source in sources:
            file = cache.attach(source.version, 24 * M)
            file._fetching.want(range(8 * M // B), source, Purpose.AHEAD)
            with trio.fail_after(10):
                await settled(cache)
            assert len(source.fetched) == 8 * M // B
            assert cache._traffic.in_flight <= 12 * M
            files.append(file)
        for file in files:
            file.detach()
        await trio.testing.wait_all_tasks_blocked()
        assert cache._traffic.in_flight == 0
        assert cache._traffic.buffers._free_bytes <= 4 * M


async def test_streams_take_turns(tmp_path: Path) -> None:
    """Three places in one file are fetched ahead side by side, each in the order of the file."""
    source = Source(content(48 * M))
    asked: list[int] = []

    async def note(offset: int) -> None:
        asked.append(offset // M)

    source.on_read = note
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 48 * M)
        file._fetching._wanted = deque(
            fetching._Wanted(place * M // B, (place + 12) * M // B, source, Purpose.AHEAD, M // B)
            for place in (0, 16, 32)
        )
        file._fetching.pump()
        await settled(cache)
        file.detach()
    first = sorted(asked[:16])  # those that fly at once, which begin in any order
    for place in (0, 16, 32):
        mine = [number for number in first if place <= number < place + 16]
        assert len(mine) >= 5
        assert mine == [number for number in sorted(asked) if place <= number < place + 16][: len(mine)]


async def test_random_reads_fetch_one_block_each(tmp_path: Path) -> None:
    """Nothing beside it and nothing ahead: 100 reads of 4 KiB cost 100 requests of 32 KiB."""
    source = Source(content(64 * M))
    rng = random.Random(7)
    places = [rng.randrange(64 * M // 4096) * 4096 for _ in range(100)]
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 64 * M)
        cursor = Readahead()
        for place in places:
            data = bytes(await file.read(place, 4096, source, cursor))
            assert data == source.data[place : place + 4096]
        await settled(cache)
        file.detach()
    assert source.fetched == dict.fromkeys({place // B for place in places}, 1)
    assert source.reads == len(source.fetched)


async def test_what_was_read_meanwhile_is_not_fetched_ahead(tmp_path: Path) -> None:
    """A window that had to wait for memory begins where the reader is by then."""
    source = Source(content(8 * M))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 8 * M)
        await file.read(0, B, source)
        await settled(cache)
        traffic, wanted = cache._traffic, file._fetching
        traffic.flying += 1000  # no place for flights that nobody waits for
        wanted.want(range(1, 64), source, Purpose.AHEAD)
        await file.read(B, 31 * B, source, Readahead())
        traffic.flying -= 1000
        assert [(each.start, each.stop) for each in wanted._wanted] == [(32, 64)]
        wanted.want_no_more()
        await settled(cache)
        file.detach()


def cold(monkeypatch: pytest.MonkeyPatch, cached: int | None = None) -> list[int]:
    """The local disk as after a drop of the page cache: nothing is in memory. The sizes of its reads."""
    sizes: list[int] = []
    real = os.preadv

    def preadv(fd: int, buffers: list[memoryview], offset: int, flags: int = 0) -> int:
        if flags:
            raise BlockingIOError(errno.EAGAIN, "not in memory")
        return real(fd, buffers, offset)

    def noted(fd: int, data: memoryview, offset: int) -> list[int]:
        sizes.append(len(data))
        return read_into(fd, data, offset)

    monkeypatch.setattr(os, "preadv", preadv)

    def noted_direct(direct: int, fd: int, buffer: memoryview, size: int, offset: int) -> list[int]:
        assert fcntl.fcntl(direct, fcntl.F_GETFL) & os.O_DIRECT
        sizes.append(size)
        return read_direct(direct, fd, buffer, size, offset)

    monkeypatch.setattr(CacheFile, "is_resident", lambda self, blocks: False)
    monkeypatch.setattr(CacheFile, "_cached_bytes", lambda self, blocks: cached)
    monkeypatch.setattr(fetching, "read_into", noted)
    monkeypatch.setattr(fetching, "read_direct", noted_direct)
    return sizes


@pytest.mark.parametrize("cached", [0, None])
@pytest.mark.parametrize("size", [128 << 10, M])
async def test_cold_disk_is_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, cached: int | None
) -> None:
    """R9a: a sequential reader of what only the disk has finds it in memory; no block is read twice."""
    source = Source(content(32 * M + 4321))
    async with running(tmp_path) as cache:
        await warm(cache, source)
    async with running(tmp_path) as cache:
        sizes = cold(monkeypatch, cached)
        file = cache.attach(source.version, len(source.data))
        cursor = Readahead()
        for offset in range(0, len(source.data), size):
            # Without a reader: it is not needed.
            assert bytes(await file.read(offset, size, None, cursor)) == source.data[offset : offset + size]
        assert sum(sizes) == len(source.data)
        assert len(sizes) <= 40
        assert M <= max(sizes) <= 4 * M
        file.detach()
        assert cache.corrupt_blocks == 0
    assert set(source.fetched.values()) == {1}


@pytest.mark.parametrize("cached", [0, None])
async def test_damage_is_found_when_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cached: int | None
) -> None:
    """R4: bytes that come from the disk ahead of the reader are verified as all others."""
    source = Source(content(16 * M))
    async with running(tmp_path) as cache:
        await warm(cache, source)
    (path,) = cache_files(tmp_path)
    damaged = [3 * M + 5, 9 * M, 9 * M + B, 16 * M - 1]
    with path.open("r+b") as disk:
        for offset in damaged:
            disk.seek(offset)
            disk.write(b"!!!!"[: 16 * M - offset])
    async with running(tmp_path) as cache:
        cold(monkeypatch, cached)
        file = cache.attach(source.version, 16 * M)
        cursor = Readahead()
        for offset in range(0, 16 * M, M):
            assert bytes(await file.read(offset, M, source, cursor)) == source.data[offset : offset + M]
        file.detach()
        assert cache.corrupt_blocks == len(damaged)
    assert source.fetched == {n: 1 + (n in {at // B for at in damaged}) for n in range(16 * M // B)}


async def test_sixteen_readers_of_a_cold_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R9: they share the reads of the disk, as they share those of the store."""
    source = Source(content(4 * M))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        sizes = cold(monkeypatch)
        file = cache.attach(source.version, 4 * M)
        wrong = []

        async def whole() -> None:
            for offset in range(0, 4 * M, M):
                if bytes(await file.read(offset, M, None)) != source.data[offset : offset + M]:
                    wrong.append(offset)

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(whole)
        file.detach()
    assert wrong == []
    assert sum(sizes) <= 2 * len(source.data)


@needs_root
def test_what_the_page_cache_has_is_known(tmp_path: Path) -> None:
    """The kernel is asked, so that the disk is read ahead when and where it has to be."""
    with small_disk("ext4", tmp_path / "disk", 24 * M) as disk:

        async def run() -> None:
            source = Source(content(8 * M))
            async with running(disk) as cache:
                await warm(cache, source)
                file = cache.attach(source.version, 8 * M)
                await file.read(0, 1, None)
                local = file._file
                assert local.is_resident(range(block_count(8 * M)))
                os.fsync(local.fd)
                os.posix_fadvise(local.fd, 2 * M, 2 * M, os.POSIX_FADV_DONTNEED)
                assert local.is_resident(range(2 * M // B))
                assert not local.is_resident(range(2 * M // B, 4 * M // B))
                assert not local.is_resident(range(3 * M // B, 5 * M // B))
                file.detach()

        trio.run(run)


async def test_all_of_a_file_for_nobody(tmp_path: Path) -> None:
    """It is in the cache file after that, also where memory is short; no memory is held for readers."""
    source = Source(content(12 * M))
    async with running(tmp_path, memory=4 * M) as cache:
        file = cache.attach(source.version, 12 * M)
        await file.read(5 * M, M, source)
        await file.fetch_rest(source, trio.current_time() + 60)
        assert file.complete
        assert cache._traffic.in_flight == 0
        file.detach()
    assert set(source.fetched.values()) == {1}


async def test_a_fetch_of_all_that_ends_in_time(tmp_path: Path) -> None:
    """It begins nothing after its time, and waits for what it has begun."""
    source = Source(content(64 * M))

    async def slow(_: int) -> None:
        await trio.sleep(0.02)

    source.on_read = slow
    async with running(tmp_path, limit=200 * M, memory=4 * M) as cache:
        file = cache.attach(source.version, 64 * M)
        await file.fetch_rest(source, trio.current_time() + 0.01)
        assert not file.complete
        assert cache._traffic.in_flight == 0
        file.detach()


async def test_end_of_the_service_with_flights_under_way(tmp_path: Path) -> None:
    """Flights that are cancelled leave nothing behind, and reads then fetch for themselves."""
    source = Source(content(8 * M))

    async def hang(_: int) -> None:
        await trio.sleep_forever()

    cache = Cache.open(tmp_path, 64 * M, 64 * M)
    file = cache.attach(source.version, 8 * M)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        source.on_read = hang
        file._fetching.want(range(block_count(8 * M)), source, Purpose.AHEAD)
        await trio.testing.wait_all_tasks_blocked()
        assert cache._traffic.flying == 2
        nursery.cancel_scope.cancel()
    assert (cache._traffic.flying, cache._traffic.in_flight) == (0, 0)
    source.on_read = None
    assert bytes(await file.read(0, 8 * M, source)) == source.data
    file.detach()
    cache.close()
