"""Checks of a cache, while it serves and without a daemon: damage is found, dropped, and nothing else is."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trio

from tests.cache.source import M, Source, cache_files, content, running, settled, warm
from volfs.cache.check import CacheReport
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.cache.unused import look_at, mend_at
from volfs.core.versions import Version

SIZE = 2 * M + 1000
BLOCKS = 2 * M // B + 1


async def filled(directory: Path, *sources: Source) -> None:
    """A cache that was closed with all of the sources in it."""
    async with running(directory) as cache:
        for source in sources:
            await warm(cache, source)


def flip(path: Path, *offsets: int) -> None:
    """Change single bytes of a file."""
    with path.open("r+b") as file:
        for offset in offsets:
            byte = os.pread(file.fileno(), 1, offset)[0]
            os.pwrite(file.fileno(), bytes([byte ^ 0xFF]), offset)


def state_of(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Everything in the directory, byte for byte, and what it takes."""
    paths = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_blocks, path.read_bytes()) for path in paths}


def damage(kind: str, directory: Path) -> dict[str, int]:
    """Damage the first cache file, or put something beside it; the counts that a report must have."""
    path = cache_files(directory)[0]
    if kind == "flipped":
        flip(path, 3 * B + 1000, (BLOCKS - 1) * B)
        return {"damaged_blocks": 2}
    if kind == "cut":
        os.truncate(path, 5 * B + 10)
        return {"damaged_blocks": BLOCKS - 5}
    if kind == "missing":
        path.unlink()
        return {"missing_files": 1}
    if kind == "foreign":
        for name in ("00/zz", "01/ffffff", "02/1", "at the top"):
            (directory / "blocks" / name).write_bytes(b"stranger")
        return {"foreign_files": 4}
    if kind == "longer":
        with path.open("ab") as file:
            file.write(b"x" * 100)
        return {"bloated_files": 1}
    assert kind == "holes"
    connection = sqlite3.connect(directory / "index.db")
    connection.execute(f"DELETE FROM block WHERE number > {M // B}")
    connection.commit()
    connection.close()
    return {"bloated_files": 1}


KINDS = ("flipped", "cut", "missing", "foreign", "longer", "holes")
_COUNTS = ("damaged_blocks", "missing_files", "foreign_files", "bloated_files", "skipped_files")


def counts(report: CacheReport) -> dict[str, int]:
    """What was found, by kind."""
    document = report.document()
    return {name: document[name] for name in _COUNTS if document[name]}


@pytest.mark.parametrize("kind", KINDS)
async def test_damage_without_a_daemon(tmp_path: Path, kind: str) -> None:
    """A look finds it and changes not a byte; mending leaves nothing to find, and the rest in the cache."""
    source, other = Source(content(SIZE)), Source(content(M, seed=2), b"v2")
    await filled(tmp_path, source, other)
    expected = damage(kind, tmp_path)
    before = state_of(tmp_path)
    looked = await look_at(tmp_path)
    after = state_of(tmp_path)
    mended = await mend_at(tmp_path)
    again = await mend_at(tmp_path)

    assert counts(looked) == expected
    assert (looked.found, looked.remaining) == (sum(expected.values()),) * 2
    assert after == before
    assert counts(mended) == expected
    assert (mended.found, mended.remaining) == (sum(expected.values()), 0)
    assert (again.found, again.remaining) == (0, 0)
    async with running(tmp_path) as cache:
        for one in (source, other):
            await warm(cache, one)
        assert cache.corrupt_blocks == 0  # the check had found all
    lost = {"flipped": 2, "cut": BLOCKS - 5, "missing": BLOCKS, "holes": BLOCKS - M // B - 1}.get(kind, 0)
    assert sum(source.fetched.values()) == BLOCKS + lost
    assert set(other.fetched.values()) == {1}


#: Not holes: the index of a cache that serves is ours alone. A file in use may have more than is present.
_SERVING = [(kind, attached) for kind in KINDS[:-1] for attached in (False, True)]
_SERVING.remove(("longer", True))


@pytest.mark.parametrize(("kind", "attached"), _SERVING)
async def test_damage_while_it_serves(tmp_path: Path, kind: str, attached: bool) -> None:
    """The same on a running cache, whether the damaged file is being read or not: reads stay right."""
    source = Source(content(SIZE))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        await cache._shelf.flush()
        reader = cache.attach(source.version, SIZE) if attached else None
        expected = damage(kind, tmp_path)
        looked = await cache.look()
        mended = await cache.mend()
        await cache._shelf.flush()
        again = await cache.mend()
        used = cache.used_bytes
        await warm(cache, source)
        if reader is not None:
            assert bytes(await reader.read(0, SIZE, source)) == source.data
            reader.detach()

    assert counts(looked) == expected
    assert looked.remaining == sum(expected.values())
    assert (counts(mended), mended.remaining) == (expected, 0)
    assert again.found == 0
    assert used <= SIZE + 64 * 1024


async def test_a_file_in_use_may_be_larger_than_the_index_says(tmp_path: Path) -> None:
    """Blocks are written before they are present: such space is no damage until nobody uses the file."""
    source = Source(content(SIZE))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        reader = cache.attach(source.version, SIZE)
        damage("longer", tmp_path)
        assert (await cache.mend()).found == 0
        reader.detach()
        assert counts(await cache.mend()) == {"bloated_files": 1}
        assert cache_files(tmp_path)[0].stat().st_size == SIZE


async def test_a_sound_cache(tmp_path: Path) -> None:
    """Everything is looked at, nothing is found, and what is known and in which order stays as it was."""
    sources = [Source(content(M + i, seed=i), b"v%d" % i) for i in range(20)]
    await filled(tmp_path, *sources)
    before = await look_at(tmp_path)
    async with running(tmp_path) as cache:
        order = [row.version for row in cache._shelf.index.oldest(guests=False)]
        report = await cache.mend()
        await cache._shelf.flush()
        assert [row.version for row in cache._shelf.index.oldest(guests=False)] == order
        assert not cache._shelf.hot
        for source in sources:
            await warm(cache, source)

    for one in (before, report):
        assert (one.found, one.files) == (0, 20)
        assert one.blocks == sum(-(-len(source.data) // B) for source in sources)
        assert one.bytes == sum(len(source.data) for source in sources)
    assert all(set(source.fetched.values()) == {1} for source in sources)


async def test_a_file_that_is_only_in_memory(tmp_path: Path) -> None:
    """What the index has not heard of yet is checked, too, and is no stranger."""
    source = Source(content(SIZE))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, SIZE)
        await file.read(0, SIZE, source)
        await settled(cache)
        assert not cache._shelf.index.has(1)
        flip(cache_files(tmp_path)[0], 5)
        report = await cache.mend()
        assert counts(report) == {"damaged_blocks": 1}
        assert bytes(await file.read(0, SIZE, source)) == source.data
        file.detach()


async def test_reads_go_on_during_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two of its reads everybody else gets a turn; it never holds more than two megabytes."""
    sources = [Source(content(16 * M, seed=i), b"v%d" % i) for i in range(2)]
    async with running(tmp_path) as cache:
        for source in sources:
            await warm(cache, source)
        largest = 0
        shelf_thread = cache._shelf.thread
        hits = 0

        async def thread(function: Callable[..., object], *args: object) -> object:
            nonlocal largest, hits
            if function.__name__ == "_read_sums":
                largest = max(largest, args[1].size)  # type: ignore[attr-defined]
                file = cache.attach(sources[0].version, 16 * M)
                assert (
                    bytes(await file.read(hits % 16 * M, 100, None)) == sources[0].data[hits % 16 * M :][:100]
                )
                file.detach()
                hits += 1
            return await shelf_thread(function, *args)

        monkeypatch.setattr(cache._shelf, "thread", thread)
        report = await cache.look()
    assert report.found == 0
    assert hits == 16
    assert largest == 2 * M


async def test_blocks_that_leave_during_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eviction goes on: what is being looked at stays until then, what left is not called damage."""
    sources = [Source(content(4 * M, seed=i), b"v%d" % i) for i in range(3)]
    async with running(tmp_path) as cache:
        for source in sources:
            await warm(cache, source)
        shelf_thread = cache._shelf.thread
        evicting = False

        async def thread(function: Callable[..., object], *args: object) -> object:
            nonlocal evicting
            if function.__name__ == "_read_sums" and not evicting:
                evicting = True
                await cache.evict_all()
                evicting = False
            return await shelf_thread(function, *args)

        monkeypatch.setattr(cache._shelf, "thread", thread)
        report = await cache.mend()
        assert (report.found, report.blocks) == (0, 2 * M // B)
        monkeypatch.undo()
        for source in sources:
            await warm(cache, source)
        assert cache.corrupt_blocks == 0
    assert (await look_at(tmp_path)).found == 0


async def test_a_file_that_is_forgotten_during_a_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that nobody will ask for again goes, whoever looks at it; it does not come back."""
    source = Source(content(SIZE))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        await cache._shelf.flush()
        shelf_thread = cache._shelf.thread

        async def thread(function: Callable[..., object], *args: object) -> object:
            if function.__name__ == "_read_sums":
                cache.forget(source.version)
            return await shelf_thread(function, *args)

        monkeypatch.setattr(cache._shelf, "thread", thread)
        report = await cache.mend()
        monkeypatch.undo()
        await cache._shelf.flush()
        assert report.found == 0
        assert (cache.used_bytes, cache_files(tmp_path)) == (0, [])
        assert cache._shelf.index.find(source.version) == []


@pytest.mark.parametrize("kind", ["garbage", "page", "no table"])
async def test_a_damaged_index(tmp_path: Path, kind: str) -> None:
    """Without a daemon it is set aside and the cache starts empty, at once; a look leaves it."""
    sources = [Source(content(4096, seed=i), b"version %d" % i) for i in range(300)]
    await filled(tmp_path, *sources)
    path = tmp_path / "index.db"
    if kind == "garbage":
        path.write_bytes(b"no database" * 1000)
    elif kind == "page":
        pages = path.stat().st_size // 4096
        with path.open("r+b") as file:
            file.seek(pages // 2 * 4096)
            file.write(b"\xff" * 4096)
    else:
        connection = sqlite3.connect(path)
        connection.execute("DROP TABLE block")
        connection.commit()
        connection.close()
    before = state_of(tmp_path)
    looked = await look_at(tmp_path)
    after = state_of(tmp_path)
    mended = await mend_at(tmp_path)

    assert looked.index_damage is not None
    assert looked.remaining >= 1
    assert after == before
    assert mended.index_damage is not None
    assert mended.remaining == 0
    assert (tmp_path / "index.db.damaged").exists()
    assert cache_files(tmp_path) == []
    assert (await look_at(tmp_path)).found == 0
    async with running(tmp_path) as cache:
        await warm(cache, sources[0])


async def test_an_index_that_is_damaged_while_it_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be replaced under the daemon: the damage remains, and the next start finds it by itself."""
    source = Source(content(SIZE))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        monkeypatch.setattr(cache._shelf.index, "verdict", lambda: "row 3 missing from index")
        report = await cache.mend()
        assert report.index_damage == "row 3 missing from index"
        assert (report.found, report.remaining) == (1, 1)
    connection = sqlite3.connect(tmp_path / "index.db")
    assert connection.execute("SELECT clean FROM state").fetchone() == (0,)
    connection.close()


async def test_an_index_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says nothing about the cache files: a look leaves them where they are."""
    source = Source(content(SIZE))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        await cache._shelf.flush()

        def load(id_: int) -> dict[int, int]:
            raise sqlite3.OperationalError("no such table: block")

        monkeypatch.setattr(cache._shelf.index, "load", load)
        report = await cache.look()
        monkeypatch.undo()
        assert (report.index_damage, report.remaining) == ("no such table: block", 1)
        await warm(cache, source)
    assert set(source.fetched.values()) == {1}


async def test_after_a_crash(tmp_path: Path) -> None:
    """What `kill -9` leaves is mended like any damage, and is not served unverified afterwards."""
    known, unknown = Source(content(SIZE)), Source(content(SIZE, seed=2), b"v2")
    directory, left = tmp_path / "running", tmp_path / "left"
    directory.mkdir()
    async with running(directory) as cache:
        await warm(cache, known)
        await cache._shelf.flush()
        await warm(cache, unknown)
        shutil.copytree(directory, left)
    looked = await look_at(left)
    mended = await mend_at(left)

    assert counts(looked) == counts(mended) == {"foreign_files": 1}
    assert (await look_at(left)).found == 0
    async with running(left) as cache:
        await warm(cache, known)
        await warm(cache, unknown)
    assert set(known.fetched.values()) == {1}
    assert set(unknown.fetched.values()) == {2}


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Make one file's open fail as a failing disk does."""
    real = os.open

    def make(path: Path) -> None:
        def opened(name: object, *args: object, **more: object) -> int:
            if name == str(path):
                raise OSError(5, "Input/output error")
            return real(name, *args, **more)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "open", opened)

    yield make
    monkeypatch.undo()


async def test_a_file_that_cannot_be_opened(tmp_path: Path, unreadable: Callable[[Path], None]) -> None:
    """An error that says nothing about the bytes costs none: the file is skipped, and that is said."""
    source = Source(content(SIZE))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        await cache._shelf.flush()
        unreadable(cache_files(tmp_path)[0])
        report = await cache.mend()
        assert counts(report) == {"skipped_files": 1}
        assert (report.found, report.remaining) == (1, 1)
        assert cache._shelf.index.find(Version(b"v1")) != []
    with trio.fail_after(5):
        assert len(cache_files(tmp_path)) == 1
