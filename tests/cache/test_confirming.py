"""Versions that the store's client remembers: bytes are kept and fetched ahead of one version only."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.cache.source import M, Source, content, running, settled
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.flight import Purpose
from volfs.core.spans import block_count
from volfs.core.versions import Version
from volfs.errors import StoreError, VersionChanged
from volfs.store.base import Stat


async def test_bytes_are_kept_once_the_store_has_confirmed_their_version(tmp_path: Path) -> None:
    """R3a: who waits has them after one round trip; the second one is for the cache file."""
    source = Source(content(4 * M))
    source.remembered = source.version
    asked, answer = trio.Event(), trio.Event()
    stat = source.stat

    async def slow() -> Stat:
        asked.set()
        await answer.wait()
        return await stat()

    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 4 * M)
        source.stat = slow  # type: ignore[method-assign]
        assert bytes(await file.read(0, M, source)) == source.data[:M]
        await asked.wait()
        assert not file._file.present
        answer.set()
        await settled(cache)
        assert file._file.has(range(M // B))
        file.detach()


async def test_a_change_that_the_client_does_not_know_yet(tmp_path: Path) -> None:
    """R3a: nothing of the new content is kept as the old, and the next read finds out."""
    source = Source(content(4 * M))
    source.remembered = source.version
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 4 * M)
        assert bytes(await file.read(0, M, source)) == source.data[:M]
        await settled(cache)
        source.data, source.version = content(4 * M, seed=2), Version(b"v2")
        await file.read(2 * M, M, source)
        await settled(cache)
        assert not any(number >= M // B for number in file._file.present or ())
        with pytest.raises(VersionChanged):
            await file.read(0, M, source)  # also where it would have been a hit
        file.detach()


async def test_what_is_fetched_ahead_is_confirmed_before_it_is_served(tmp_path: Path) -> None:
    """R3a: nobody waited for it, so there is time for the second round trip, one for many flights."""
    source = Source(content(32 * M))
    source.remembered = source.version
    answer, served = trio.Event(), []
    stat = source.stat

    async def slow() -> Stat:
        await answer.wait()
        return await stat()

    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 32 * M)
        source.stat = slow  # type: ignore[method-assign]
        file._fetching.want(range(block_count(16 * M)), source, Purpose.AHEAD)
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                served.append(bytes(await file.read(0, M, source)))

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            assert served == []
            answer.set()
        await settled(cache)
        assert served == [source.data[:M]]
        assert source.asked < source.reads
        source.data, source.version = content(32 * M, seed=2), Version(b"v2")
        file._fetching.want(range(16 * M // B, 32 * M // B), source, Purpose.AHEAD)
        await settled(cache)
        with pytest.raises(VersionChanged):
            await file.read(20 * M, M, source)
        assert set(file._file.present or ()) == set(range(16 * M // B))
        file.detach()


async def test_a_store_that_cannot_confirm(tmp_path: Path) -> None:
    """What was served is not kept; who comes next asks again."""
    source = Source(content(2 * M))
    source.remembered = source.version

    async def away() -> Stat:
        raise StoreError("away", errno=errno.EHOSTDOWN)

    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 2 * M)
        stat, source.stat = source.stat, away  # type: ignore[method-assign]
        assert bytes(await file.read(0, M, source)) == source.data[:M]
        await settled(cache)
        assert not file._file.present
        source.stat = stat  # type: ignore[method-assign]
        assert bytes(await file.read(0, M, source)) == source.data[:M]
        await settled(cache)
        assert file._file.has(range(M // B))
        file.detach()


async def test_a_racy_version_is_confirmed_before_it_is_served(tmp_path: Path) -> None:
    """R3a: a version that may have changed unseen is not believed on memory alone."""
    source = Source(content(M))
    source.remembered = source.version
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, M)
        file.storable = False
        assert bytes(await file.read(0, 100, source)) == source.data[:100]
        source.version = Version(b"v2")
        with pytest.raises(VersionChanged):
            await file.read(0, 100, source)
        file.detach()
