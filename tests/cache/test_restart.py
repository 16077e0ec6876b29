"""What a start finds: the cache of the last run, whole, damaged, half written or of another format."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
import trio

from tests.cache.source import M, Source, allocated, cache_files, content, running, settled, warm
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.fill import Cache
from volfs.core.spans import cost_bytes
from volfs.core.versions import Version


async def filled(directory: Path, *sources: Source) -> None:
    """A cache that was closed with all of the sources in it."""
    async with running(directory) as cache:
        for source in sources:
            await warm(cache, source)


def flip(path: Path, offset: int) -> None:
    """Change one byte of a file."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0xFF]))


def crashed(directory: Path, target: Path) -> Path:
    """The directory as `kill -9` would leave it now."""
    shutil.copytree(directory, target)
    return target


async def test_restart_keeps_everything(tmp_path: Path) -> None:
    """R5: after a restart unchanged files cost no fetch, and the bytes are accounted for."""
    sources = [Source(content(M + i, seed=i), b"v%d" % i) for i in range(20)]
    await filled(tmp_path, *sources)
    before = allocated(tmp_path)
    async with running(tmp_path) as cache:
        assert before <= cache.used_bytes <= before + 20 * 8192
        for source in sources:
            file = cache.attach(source.version, len(source.data))
            assert file.complete
            assert bytes(await file.read(0, 2 * M, None)) == source.data
            file.detach()
        assert cache.corrupt_blocks == 0
    assert all(set(source.fetched.values()) == {1} for source in sources)


async def test_restart_after_a_change(tmp_path: Path) -> None:
    """R5: another version shares nothing with the one that was cached."""
    old, new = Source(content(M), b"v1"), Source(content(M, seed=2), b"v2")
    await filled(tmp_path, old)
    async with running(tmp_path) as cache:
        file = cache.attach(new.version, M)
        assert bytes(await file.read(0, M, new)) == new.data
        file.detach()


@pytest.mark.parametrize("size", [M, 2000])
@pytest.mark.parametrize("piece", [M, 4096])
async def test_flipped_byte_after_a_restart(tmp_path: Path, size: int, piece: int) -> None:
    """R4: a damaged block is never served: it is counted, dropped and fetched again, alone."""
    source = Source(content(size))
    await filled(tmp_path, source)
    (path,) = cache_files(tmp_path)
    flip(path, 1000)
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, size)
        found = b"".join([bytes(await file.read(at, piece, source)) for at in range(0, size, piece)])
        assert found == source.data
        assert cache.corrupt_blocks == 1
        assert source.fetched[0] == 2
        assert sum(source.fetched.values()) == -(-size // B) + 1
        await settled(cache)
        assert bytes(await file.read(0, size, None)) == source.data
        file.detach()


@pytest.mark.parametrize("piece", [M, 4096])
async def test_flipped_byte_while_the_file_is_open(tmp_path: Path, piece: int) -> None:
    """R4: somebody who writes into a cache file that is being read is noticed too."""
    source = Source(content(2 * M))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        file = cache.attach(source.version, 2 * M)
        await file.read(0, 2 * M, None)
        (path,) = cache_files(tmp_path)
        flip(path, M + 40_000)
        found = b"".join([bytes(await file.read(at, piece, source)) for at in range(0, 2 * M, piece)])
        assert found == source.data
        assert cache.corrupt_blocks == 1
        file.detach()


async def test_cache_files_removed_or_cut(tmp_path: Path) -> None:
    """Clean data that is gone is fetched again, whether it goes between two runs or two opens."""
    sources = [Source(content(M, seed=i), b"v%d" % i) for i in range(3)]
    await filled(tmp_path, *sources)
    paths = cache_files(tmp_path)
    os.truncate(paths[0], 10)
    paths[1].unlink()
    async with running(tmp_path) as cache:
        for source in sources:
            await warm(cache, source)
        await cache._shelf.flush()
        for path in cache_files(tmp_path):
            path.unlink()
        for source in sources:
            await warm(cache, source)
            await warm(cache, source)
        # Stored again, whoever damaged it: the second time costs nothing.
        assert sum(sum(source.fetched.values()) for source in sources) == (3 + 2 + 3) * (M // B)


async def test_crash_keeps_what_the_index_heard(tmp_path: Path) -> None:
    """R5, B1: after `kill -9` known blocks are served, unknown ones give their space back."""
    known, unknown, half = (Source(content(4 * M, seed=i), b"v%d" % i) for i in range(3))
    directory = tmp_path / "before"
    directory.mkdir()
    async with running(directory) as cache:
        await warm(cache, known)
        file = cache.attach(half.version, 4 * M)
        await file.read(0, M, half)
        await settled(cache)
        await cache._shelf.flush()
        await file.read(M, 3 * M, half)
        await settled(cache)
        await warm(cache, unknown)
        after = crashed(directory, tmp_path / "after")
        file.detach()
    async with running(after) as cache:
        assert allocated(after) <= cache.used_bytes <= 5 * M + 64 * 1024
        assert len(cache_files(after)) == 2
        await warm(cache, known)
        await warm(cache, half)
        assert cache.corrupt_blocks == 0
    assert set(known.fetched.values()) == {1}
    assert [half.fetched[block] for block in range(4 * M // B)] == [1] * (M // B) + [2] * (3 * M // B)


async def test_crash_during_eviction(tmp_path: Path) -> None:
    """A block that the index still has and the disk has not is noticed, never served as zeros."""
    source = Source(content(2 * M))
    await filled(tmp_path, source)
    (path,) = cache_files(tmp_path)
    os.truncate(path, 0)
    os.truncate(path, 2 * M)
    async with running(tmp_path) as cache:
        await warm(cache, source)
        assert cache.corrupt_blocks == 2 * M // B


@pytest.mark.parametrize(
    "damage", ["garbage", "empty", "half", "other format", "other application", "no table", "broken rows"]
)
async def test_damaged_index(tmp_path: Path, damage: str) -> None:
    """An index that cannot be trusted is set aside; the cache starts empty and works."""
    source = Source(content(4 * M))
    await filled(tmp_path, source)
    path = tmp_path / "index.db"
    if damage == "garbage":
        path.write_bytes(b"no database" * 1000)
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "half":
        os.truncate(path, path.stat().st_size // 2)
    else:
        statement = {
            "other format": "PRAGMA user_version = 99",
            "other application": "PRAGMA application_id = 1",
            "no table": "DROP TABLE state",
            # Rows that the schema forbids: what only a look at all of them finds.
            "broken rows": "UPDATE sqlite_master SET sql = "
            "replace(sql, 'size    INTEGER NOT NULL', 'size INTEGER CHECK (size < 0)') WHERE name = 'file'",
        }[damage]
        connection = sqlite3.connect(path)
        connection.execute("UPDATE state SET clean = 0")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(statement)
        connection.commit()
        connection.close()
    async with running(tmp_path) as cache:
        assert cache.used_bytes == 0
        assert cache_files(tmp_path) == []
        await warm(cache, source)
    async with running(tmp_path) as cache:
        await warm(cache, source)
    assert set(source.fetched.values()) == {2}


async def test_full_disk_at_start_does_not_cost_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index that cannot be opened for another reason than damage stays where it is."""
    source = Source(content(M))
    await filled(tmp_path, source)
    path = tmp_path / "index.db"
    path.rename(tmp_path / "kept")
    path.mkdir()
    with pytest.raises(sqlite3.OperationalError):
        Cache.open(tmp_path, 64 * M, 64 * M)
    path.rmdir()
    (tmp_path / "kept").rename(path)
    async with running(tmp_path) as cache:
        await warm(cache, source)
    assert set(source.fetched.values()) == {1}


async def test_smaller_limit_at_start(tmp_path: Path) -> None:
    """B1: a cache that is over its new limit comes under it by itself."""
    sources = [Source(content(2 * M, seed=i), b"v%d" % i) for i in range(8)]
    await filled(tmp_path, *sources)
    async with running(tmp_path, limit=5 * M) as cache:
        with trio.fail_after(10):
            while cache.used_bytes > 5 * M:
                await trio.lowlevel.checkpoint()
        assert allocated(tmp_path) <= 5 * M
        last = cache.attach(sources[-1].version, 2 * M)
        assert last.complete
        last.detach()
        first = cache.attach(Version(b"v0"), 2 * M)
        assert not first.complete
        first.detach()


async def test_strangers_in_the_directory(tmp_path: Path) -> None:
    """After a crash, files without a row are removed, whatever their name, and rows without a file."""
    source, lost = Source(content(M)), Source(content(2 * M, seed=2), b"v2")
    directory = tmp_path / "before"
    directory.mkdir()
    async with running(directory) as cache:
        await warm(cache, source)
        await warm(cache, lost)
        await cache._shelf.flush()
        after = crashed(directory, tmp_path / "after")
    cache_files(after)[-1].unlink()
    for name in ("00/zz", "01/ffffff", "02/1"):
        (after / "blocks" / name).write_bytes(b"stranger")
    async with running(after) as cache:
        assert len(cache_files(after)) == 1
        assert cache.used_bytes == cost_bytes(M // B, True, M)
        await warm(cache, source)
    assert set(source.fetched.values()) == {1}
