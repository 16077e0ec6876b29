"""Reading through the cache: once fetched, exactly one version, never in the way of a reader."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.cache.source import M, Source, allocated, cache_files, content, running, settled, warm
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.fill import Cache
from volfs.cache.flight import Purpose
from volfs.core.readahead import Readahead
from volfs.core.spans import block_count
from volfs.core.versions import Version
from volfs.errors import StoreError, VersionChanged


async def test_sixteen_readers_fetch_each_block_once(tmp_path: Path) -> None:
    """R5: concurrent readers of a cold file share its fetches, and all get its bytes."""
    source = Source(content(5 * M + 123))
    wrong = []
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))

        async def whole() -> None:
            cursor = Readahead()
            for offset in range(0, len(source.data), 128 << 10):
                data = bytes(await file.read(offset, 128 << 10, source, cursor))
                if data != source.data[offset : offset + (128 << 10)]:
                    wrong.append(offset)

        async with trio.open_nursery() as nursery:
            for _ in range(16):
                nursery.start_soon(whole)
        await settled(cache)
        assert file.complete
        file.detach()
    assert wrong == []
    assert source.fetched == dict.fromkeys(range(5 * M // B + 1), 1)


async def test_hit_needs_no_reader(tmp_path: Path) -> None:
    """What is present is read without the store, and counted."""
    source = Source(content(3 * M))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        assert (cache.misses, cache.hits) == (3 * M // B, 0)
        file = cache.attach(source.version, len(source.data))
        assert bytes(await file.read(M - 5, M + 10, None)) == source.data[M - 5 : 2 * M + 5]
        assert cache.hits == M // B + 2
        file.detach()


async def test_hit_takes_no_checkpoint(tmp_path: Path) -> None:
    """A read that the page cache answers ends without giving the thread away."""
    source = Source(content(2 * M))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))
        await file.read(0, 2 * M, source)
        await settled(cache)
        await file.read(0, M, None)
        with trio.testing.assert_no_checkpoints():
            data = bytes(await file.read(4096, M, None))
        assert data == source.data[4096 : 4096 + M]
        file.detach()


async def test_reads_at_the_end(tmp_path: Path) -> None:
    """Reads are cut at the size of the version; beyond it there is nothing."""
    source = Source(content(B + 10))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))
        assert bytes(await file.read(B, 100, source)) == source.data[B:]
        assert bytes(await file.read(B + 10, 100, None)) == b""
        assert bytes(await file.read(9 * B, 100, None)) == b""
        file.detach()
        empty = cache.attach(Version(b"empty"), 0)
        assert empty.complete
        assert bytes(await empty.read(0, 100, None)) == b""
        empty.detach()


async def test_missing_block_without_a_reader(tmp_path: Path) -> None:
    """R3: bytes that cannot be had are a changed version, not zeros."""
    source = Source(content(3 * B))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))
        with pytest.raises(VersionChanged):
            await file.read(0, 10, None)
        await file.read(0, 10, source)
        await settled(cache)
        with pytest.raises(VersionChanged):
            await file.read(0, 2 * B, None)
        assert bytes(await file.read(0, 10, None)) == source.data[:10]
        assert not file.complete
        file.detach()


async def test_version_that_changes_during_a_fetch(tmp_path: Path) -> None:
    """R3: a fetch that overlaps a change raises and leaves nothing behind."""
    source = Source(content(4 * M))

    async def change(_: int) -> None:
        source.data, source.version = content(4 * M, seed=2), Version(b"v2")

    async with running(tmp_path) as cache:
        file = cache.attach(Version(b"v1"), 4 * M)
        source.on_read = change
        with pytest.raises(VersionChanged):
            await file.read(0, M, source)
        await settled(cache)
        with pytest.raises(VersionChanged):
            await file.read(0, M, None)
        file.detach()
        assert cache.used_bytes == 0
    assert cache_files(tmp_path) == []


async def test_store_shorter_than_the_version(tmp_path: Path) -> None:
    """A read that ends within the known size is a changed version."""
    source = Source(content(M))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 2 * M)
        with pytest.raises(VersionChanged):
            await file.read(M - 10, 20, source)
        file.detach()


async def test_error_of_the_store_reaches_all_who_wait_and_is_not_kept(tmp_path: Path) -> None:
    """The true errno for each reader; the next read asks again."""
    source = Source(content(M))
    source.error = StoreError("away", errno=errno.EHOSTDOWN)
    seen = []
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, M)

        async def one() -> None:
            with pytest.raises(StoreError) as caught:
                await file.read(0, M, source)
            seen.append(caught.value.errno)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            nursery.start_soon(one)
        source.error = None
        assert bytes(await file.read(0, M, source)) == source.data
        file.detach()
    assert seen == [errno.EHOSTDOWN] * 2


async def test_racy_version_is_served_and_not_kept(tmp_path: Path) -> None:
    """`storable = False`: each read asks the store, for no more than it wants."""
    source = Source(content(M))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, M)
        file.storable = False
        for _ in range(2):
            assert bytes(await file.read(100, 5000, source)) == source.data[100:5100]
        assert source.reads == 2
        file.detach()
    assert cache_files(tmp_path) == []


async def test_no_reader_is_used_after_its_attachment(tmp_path: Path) -> None:
    """A reader is closed right after `detach`: a fetch under way does not touch it again."""
    source = Source(content(40 * M))
    release = trio.Event()

    async def hold(offset: int) -> None:
        if offset >= 2 * M:
            await release.wait()

    source.on_read = hold
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))
        cursor = Readahead()
        for offset in range(0, 2 * M, M):
            await file.read(offset, M, source, cursor)
        await trio.testing.wait_all_tasks_blocked()
        assert cache._traffic.in_flight > 0
        source.close()
        file.detach()
        other = Source(source.data)
        again = cache.attach(source.version, len(source.data))
        release.set()
        assert bytes(await again.read(2 * M, M, other)) == source.data[2 * M : 3 * M]
        again.detach()
        await settled(cache)
    assert source.used_closed == other.used_closed == 0


async def test_cancelled_reader_does_not_harm_the_other(tmp_path: Path) -> None:
    """Without the service the reader itself fetches; if it is cancelled, who waits goes on alone."""
    source = Source(content(2 * M))
    first = trio.Event()

    async def hold(_: int) -> None:
        if not first.is_set():
            first.set()
            await trio.sleep_forever()

    source.on_read = hold
    cache = Cache.open(tmp_path, 64 * M, 64 * M)
    file = cache.attach(source.version, 2 * M)
    done = []

    async def second() -> None:
        await first.wait()
        done.append(bytes(await file.read(0, 2 * M, source)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(second)
        with trio.move_on_after(5) as scope:
            async with trio.open_nursery() as inner:
                inner.start_soon(file.read, 0, 2 * M, source)
                await first.wait()
                await trio.testing.wait_all_tasks_blocked()
                inner.cancel_scope.cancel()
        assert not scope.cancelled_caught
    assert done == [source.data]
    file.detach()
    cache.close()


async def test_fetches_ahead_in_parallel(tmp_path: Path) -> None:
    """Sixteen fetches of one file are under way at once; each that ends makes place for the next."""
    source = Source(content(48 * M))
    release = trio.Event()

    async def hold(_: int) -> None:
        await release.wait()

    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 48 * M)
        source.on_read = hold
        file._fetching.want(range(block_count(48 * M)), source, Purpose.KEEP, M)
        await trio.testing.wait_all_tasks_blocked()
        assert source.at_once == 16
        release.set()
        await settled(cache)
        assert file.complete
        file.detach()
    assert source.most_at_once == 16


async def test_sequential_reader_stays_within_memory(tmp_path: Path) -> None:
    """B2: what is fetched ahead of a reader, and not yet written, never exceeds the budget."""
    source = Source(content(48 * M))
    most = 0

    async with running(tmp_path, memory=6 * M) as cache:

        async def watch(_: int) -> None:
            nonlocal most
            most = max(most, cache._traffic.in_flight)
            for _ in range(5):
                await trio.lowlevel.checkpoint()

        source.on_read = watch
        file = cache.attach(source.version, len(source.data))
        cursor = Readahead()
        for offset in range(0, 48 * M, M):
            assert bytes(await file.read(offset, M, source, cursor)) == source.data[offset : offset + M]
        await settled(cache)
        file.detach()
    assert most <= 7 * M  # and the one that a reader waits for


async def test_many_windows_share_one_memory(tmp_path: Path) -> None:
    """B2: however much is wanted ahead, it is fetched as memory becomes free, and all of it in the end."""
    sources = [Source(content(16 * M, seed=i), b"v%d" % i) for i in range(3)]
    most = 0
    async with running(tmp_path, memory=3 * M) as cache:

        async def watch(_: int) -> None:
            nonlocal most
            most = max(most, cache._traffic.in_flight)

        files = []
        for source in sources:
            source.on_read = watch
            file = cache.attach(source.version, 16 * M)
            file._fetching.want(range(block_count(16 * M)), source, Purpose.KEEP)
            files.append(file)
        await settled(cache)
        assert all(file.complete for file in files)
        assert not cache._traffic.waiting
        for file in files:
            file.detach()
    assert M <= most <= 3 * M
    assert all(set(source.fetched.values()) == {1} for source in sources)


async def test_failing_fetch_ahead_is_nobodys_error(tmp_path: Path) -> None:
    """What was fetched ahead and failed is fetched again by who wants it."""
    source = Source(content(16 * M))

    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))
        cursor = Readahead()
        await file.read(0, M, source, cursor)

        async def fail(offset: int) -> None:
            if offset >= 2 * M:
                raise RuntimeError("a bug in the store")

        source.on_read = fail
        await file.read(M, M, source, cursor)
        await settled(cache)
        source.on_read = None
        assert bytes(await file.read(2 * M, M, source, cursor)) == source.data[2 * M : 3 * M]
        file.detach()


async def test_reads_without_the_service(tmp_path: Path) -> None:
    """Before `run` and after its end a read fetches for itself, and keeps what it fetched."""
    source = Source(content(3 * M))
    cache = Cache.open(tmp_path, 64 * M, 64 * M)
    file = cache.attach(source.version, len(source.data))
    assert bytes(await file.read(0, 3 * M, source, Readahead())) == source.data
    assert file.complete
    assert bytes(await file.read(0, 3 * M, None)) == source.data
    file.detach()
    cache.close()


async def test_full_cache_disk_fails_no_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads go past a disk without space, and use it again when it has some."""
    source = Source(content(4 * M))
    real = os.pwrite
    written = 0

    def full(fd: int, data: memoryview, offset: int) -> int:
        nonlocal written
        written += 1
        if written % 2:
            return real(fd, data[:4096], offset)  # a part fits
        raise OSError(errno.ENOSPC, "no space")

    async with running(tmp_path) as cache:
        file = cache.attach(source.version, len(source.data))
        monkeypatch.setattr(os, "pwrite", full)
        assert bytes(await file.read(0, 2 * M, source)) == source.data[: 2 * M]
        await settled(cache)
        assert written
        assert cache.used_bytes == 0
        assert allocated(tmp_path) == 0
        with pytest.raises(VersionChanged):
            await file.read(0, 10, None)
        monkeypatch.undo()
        with trio.fail_after(10):  # a full disk is asked again after a moment, not at each read
            while not file.complete:
                assert bytes(await file.read(0, 4 * M, source)) == source.data
                await settled(cache)
        file.detach()


async def test_index_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failing index costs nothing now, and is told everything once it works again."""
    source = Source(content(2 * M))
    async with running(tmp_path) as cache:

        def fail(_: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        monkeypatch.setattr(cache._shelf.index, "apply", fail)
        await warm(cache, source)
        await cache._shelf.flush()
        file = cache.attach(source.version, 2 * M)
        assert bytes(await file.read(0, 2 * M, None)) == source.data
        file.detach()
        monkeypatch.undo()
    async with running(tmp_path) as cache:
        await warm(cache, source)
    assert max(source.fetched.values()) == 1
