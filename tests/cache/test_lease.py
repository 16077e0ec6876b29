"""Leases and contents of a real cache: what is held, proven, sealed and dropped, without a mount."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from tests.cache.source import M, Source, cache_files, content, running, settled, warm
from volfs.cache.contents import Held
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.fill import Cache, CachedFile
from volfs.cache.lease import Leases
from volfs.core.versions import Version
from volfs.errors import StoreError, VersionChanged


def soon() -> float:
    """A time that no test reaches."""
    return trio.current_time() + 100


async def handed_out(cache: Cache, source: Source) -> CachedFile:
    """Attached, complete, leased, proven, sealed."""
    file = cache.attach(source.version, len(source.data))
    assert cache.leases.take(file.local)
    await cache.contents.bring(file, source, lambda: True, soon())
    assert await cache.contents.prove(file.local, soon())
    file.local.seal()
    return file


def damage(path: str, offset: int) -> None:
    """Write into a sealed file, as nobody does by accident."""
    os.chmod(path, 0o600)
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(b"damage")
    os.chmod(path, 0o400)


async def flood(cache: Cache, count: int = 20) -> None:
    """So many files of a megabyte that all others have to go."""
    for i in range(count):
        await warm(cache, Source(content(M, seed=100 + i), b"flood%d" % i))


async def test_bring_fetches_what_is_missing_once(tmp_path: Path) -> None:
    """R8: all who want the same file share what is fetched, and none of it is read again."""
    source = Source(content(5 * M + 7))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))
        await file.read(2 * M, 10, source)
        await settled(cache)
        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(cache.contents.bring, file, source, lambda: True, soon())
        assert file.complete
        assert await cache.contents.of(source.version, len(source.data)) == Held(5 * M + 7, 5 * M + 7)
        file.detach()
    assert set(source.fetched.values()) == {1}
    assert len(source.fetched) == -(-len(source.data) // B)


async def test_bring_stops_when_its_time_is_over(tmp_path: Path) -> None:
    """R8: a request ends in time; what was under way is kept, and what is asked for again is the rest."""
    source = Source(content(90 * M))  # more than is fetched at once
    async with running(tmp_path, limit=100 * M) as cache:
        file = cache.attach(source.version, len(source.data))
        await cache.contents.bring(file, source, lambda: True, trio.current_time())
        held = await cache.contents.of(source.version, 90 * M)
        assert 0 < held.cached_bytes < 90 * M
        await cache.contents.bring(file, source, lambda: True, soon())
        assert file.complete
        file.detach()
    assert set(source.fetched.values()) == {1}


async def test_bring_says_why(tmp_path: Path) -> None:
    """R8: the store's own error, a version that is gone, and a cache without room are told apart."""
    source = Source(content(3 * M))
    async with running(tmp_path, limit=8 * M) as cache:
        file = cache.attach(source.version, len(source.data))
        source.error = StoreError("away", errno=errno.EHOSTDOWN)
        with pytest.raises(StoreError) as raised:
            await cache.contents.bring(file, source, lambda: True, soon())
        assert raised.value.errno == errno.EHOSTDOWN
        source.error = None
        with pytest.raises(VersionChanged):
            await cache.contents.bring(file, source, lambda: False, soon())
        with pytest.raises(VersionChanged):
            await cache.contents.bring(file, None, lambda: True, soon())
        source.version = Version(b"v2")
        with pytest.raises(VersionChanged):
            await cache.contents.bring(file, source, lambda: True, soon())
        file.detach()
        big = Source(content(9 * M), b"big")
        file = cache.attach(big.version, len(big.data))
        with pytest.raises(StoreError) as raised:
            await cache.contents.bring(file, big, lambda: True, soon())
        assert raised.value.errno == errno.ENOSPC
        assert big.reads == 0
        file.detach()


async def test_a_disk_that_fails_is_no_endless_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: what cannot be kept is said after a bounded number of reads."""
    source = Source(content(3 * M))

    def refuse(*_: object) -> int:
        raise OSError(errno.EIO, "bad disk")

    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))
        monkeypatch.setattr(os, "pwrite", refuse)
        with pytest.raises(StoreError) as raised:
            await cache.contents.bring(file, source, lambda: True, soon())
        assert raised.value.errno == errno.ENOSPC
        file.detach()
    assert max(source.fetched.values()) <= 3


async def test_leased_file_stays_and_leaves_whole(tmp_path: Path) -> None:
    """R6, B1: no block of it leaves, leased or not; then the file goes, and its readers keep it."""
    source = Source(content(10 * M))
    async with running(tmp_path, limit=24 * M) as cache:
        file = await handed_out(cache, source)
        path = file.local.path
        opened = os.open(path, os.O_RDONLY)
        await flood(cache)
        assert file.complete
        assert cache.leases.end(file.local)
        await flood(cache)
        assert file.complete  # attached: it can only go whole
        assert cache.used_bytes <= 24 * M
        file.detach()
        await flood(cache, 40)
        assert not os.path.exists(path)
        assert os.pread(opened, 11 * M, 0) == source.data
        os.close(opened)


def test_lease_ends_in_time() -> None:
    """R6a: a lease ends its time after it was asked for last, and frees its share."""
    clock = trio.testing.MockClock()
    over: list[bool] = []
    file: Any = SimpleNamespace(id=1, size=4 * M, users=0, present={}, unverified=set(), sealed=False)

    def hold(_: object) -> None:
        file.users += 1

    def release(_: object) -> None:
        file.users -= 1
        over.append(file.whole_only)

    async def main() -> None:
        shelf: Any = SimpleNamespace(hold=hold, release=release)
        room: Any = SimpleNamespace(limit_bytes=100 * M)
        leases = Leases(shelf, room, 60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leases.run)
            for _ in range(2):
                assert leases.take(file)
                await trio.testing.wait_all_tasks_blocked()
                clock.jump(59)
                await trio.testing.wait_all_tasks_blocked()
                assert (len(leases), file.users) == (1, 1)
            clock.jump(1.1)
            await trio.testing.wait_all_tasks_blocked()
            assert (len(leases), leases.bytes, file.users, over) == (0, 0, 0, [False])
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


def test_a_lease_may_end_before_anybody_looks() -> None:
    """R6a: one that is given and released at once, as a loader does, leaves the others their time."""
    clock = trio.testing.MockClock()
    file: Any = SimpleNamespace(id=1, size=4 * M, present={}, unverified=set(), sealed=False)

    async def main() -> None:
        shelf: Any = SimpleNamespace(hold=lambda _: None, release=lambda _: None)
        room: Any = SimpleNamespace(limit_bytes=100 * M)
        leases = Leases(shelf, room, 60)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leases.run)
            await trio.testing.wait_all_tasks_blocked()
            assert leases.take(file) and leases.end(file)
            await trio.testing.wait_all_tasks_blocked()
            assert leases.take(file)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(60.1)
            await trio.testing.wait_all_tasks_blocked()
            assert len(leases) == 0
            nursery.cancel_scope.cancel()

    trio.run(main, clock=clock)


async def test_leases_are_bounded_by_half_of_the_cache(tmp_path: Path) -> None:
    """R6a: what is leased already may be asked for again; what is too much is refused."""
    sources = [Source(content(5 * M, seed=i), b"%d" % i) for i in range(3)]
    async with running(tmp_path, limit=24 * M) as cache:
        files = [cache.attach(source.version, 5 * M) for source in sources]
        assert [cache.leases.take(file.local) for file in files] == [True, True, False]
        assert cache.leases.take(files[0].local)
        assert cache.leases.end(files[1].local)
        assert not cache.leases.end(files[1].local)
        assert cache.leases.take(files[2].local)
        for file in files:
            file.detach()


async def test_damage_under_a_sealed_file(tmp_path: Path) -> None:
    """R4, R6: a damaged sealed file is neither mended nor written to: the version gets another file."""
    source = Source(content(4 * M))
    async with running(tmp_path) as cache:
        file = await handed_out(cache, source)
        path, opened = file.local.path, os.open(file.local.path, os.O_RDONLY)
        damage(path, M)
        damaged = os.pread(opened, 4 * M, 0)
        assert not await cache.contents.prove(file.local, soon()) or not file.complete
        assert bytes(await file.read(M, 100, source)) == source.data[M : M + 100]
        await settled(cache)
        file.detach()
        cache.leases.end(file.local)
        again = await handed_out(cache, source)
        assert again.local.path != path
        assert Path(again.local.path).read_bytes() == source.data
        assert os.pread(opened, 4 * M, 0) == damaged
        again.detach()
        os.close(opened)


async def test_read_of_damage_in_a_sealed_file(tmp_path: Path) -> None:
    """R4, R6: the same if a read through the mount meets the damage first."""
    source = Source(content(4 * M))
    async with running(tmp_path) as cache:
        file = await handed_out(cache, source)
        opened = os.open(file.local.path, os.O_RDONLY)
        damage(file.local.path, M)
        damaged = os.pread(opened, 4 * M, 0)
        for offset in range(0, 4 * M, M):
            assert bytes(await file.read(offset, M, source)) == source.data[offset : offset + M]
            await settled(cache)
        assert os.pread(opened, 4 * M, 0) == damaged
        assert cache.corrupt_blocks == 1
        assert file.local.doomed
        file.detach()
        os.close(opened)


async def test_sealed_files_are_known_after_a_restart(tmp_path: Path) -> None:
    """R6, R5: the mark is on the disk; after it, all is proven again before it is handed out."""
    source = Source(content(4 * M))
    async with running(tmp_path) as cache:
        file = await handed_out(cache, source)
        path = file.local.path
        file.detach()
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 4 * M)
        assert file.complete
        assert file.local.sealed
        assert len(file.local.unverified) == 4 * M // B
        file.local.open(create=True)
        with pytest.raises(OSError, match="Bad file"):
            os.pwrite(file.local.fd, b"x", 0)
        file.detach()
        again = await handed_out(cache, source)
        assert again.local.path == path
        assert not again.local.unverified
        again.detach()
    assert set(source.fetched.values()) == {1}


async def test_a_crash_before_the_index_heard_of_a_sealed_file(tmp_path: Path) -> None:
    """R6: blocks without a row are not punched in a file that somebody reads: the file goes whole."""
    source = Source(content(4 * M))
    cache = Cache.open(tmp_path, 64 * M, 64 * M)
    async with trio.open_nursery() as nursery:
        await nursery.start(cache.run)
        await warm(cache, Source(content(M, seed=9), b"other"))
        file = cache.attach(source.version, 4 * M)
        await file.read(0, 10, source)
        await settled(cache)
        await cache._room.flush()
        handed = await handed_out(cache, source)
        opened = os.open(handed.local.path, os.O_RDONLY)
        nursery.cancel_scope.cancel()
    cache._shelf.index.close(clean=False)  # as after a kill: what was not told is lost
    async with running(tmp_path) as cache:
        assert os.pread(opened, 4 * M, 0) == source.data
        again = await handed_out(cache, source)
        assert Path(again.local.path).read_bytes() == source.data
        assert os.pread(opened, 4 * M, 0) == source.data
        again.detach()
    os.close(opened)
    assert len(cache_files(tmp_path)) == 2


async def test_strange_write_while_a_leased_file_is_closed(tmp_path: Path) -> None:
    """R4: a leased file that nobody uses is closed; what happens to it then is seen when it is opened."""
    source = Source(content(4 * M))
    async with running(tmp_path) as cache:
        file = await handed_out(cache, source)
        file.detach()
        assert file.local.fd < 0
        damage(file.local.path, 0)
        again = cache.attach(source.version, 4 * M)
        assert again.local is file.local
        assert bytes(await again.read(0, 100, source)) == source.data[:100]
        again.detach()
    assert cache.corrupt_blocks == 1


async def test_check_finds_damage_in_slices(tmp_path: Path) -> None:
    """R8: a check compares everything that is present, from where it left off, and changes nothing."""
    source = Source(content(9 * M))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        (path,) = cache_files(tmp_path)
        with path.open("r+b") as file:
            for offset in (0, 5 * M, 9 * M - 3):
                file.seek(offset)
                file.write(b"\xff\x00\xff")
        found, offset, slices = 0, 0, 0
        while offset >= 0:
            checked = await cache.contents.check(source.version, 9 * M, offset, trio.current_time())
            found += checked.damaged_bytes
            offset = checked.next_offset
            slices += 1
        assert (found, cache.corrupt_blocks) == (3 * B, 0)
        assert slices > 2
        assert await cache.contents.of(source.version, 9 * M) == Held(9 * M, 9 * M)
        assert (await cache.contents.check(Version(b"other"), 5, 0, soon())).next_offset == -1


async def test_evict_one(tmp_path: Path) -> None:
    """R8: a version that nobody uses leaves memory, index and disk at once; one in use stays."""
    source = Source(content(3 * M))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        used = cache.used_bytes
        file = cache.attach(source.version, 3 * M)
        kept = await cache.contents.evict(source.version, 3 * M)
        assert (kept.freed_bytes, kept.kept_bytes) == (0, used)
        file.detach()
        assert (await cache.contents.evict(source.version, 3 * M)).freed_bytes == used
        assert cache_files(tmp_path) == []
        assert cache.used_bytes == 0
        assert (await cache.contents.evict(source.version, 3 * M)).freed_bytes == 0
