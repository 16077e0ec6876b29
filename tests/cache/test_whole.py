"""Files that were fetched whole: read from memory at once, from the disk later, and never more than fit."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.cache.source import M, Source, cache_files, content, running
from volfs.cache.fill import Cache
from volfs.core.versions import Version


async def fetched(cache: Cache, name: str, data: bytes, *, keep: bool = True) -> Version:
    """As the file system does it."""
    version = Version(name.encode())
    assert cache.wholes.reserve(len(data))
    cache.wholes.put(version, data, keep=keep)
    return version


async def until(condition: Callable[[], object]) -> None:
    """Wait for a thread, bounded."""
    with trio.fail_after(10):
        while not condition():
            await trio.sleep(0.001)


async def test_bytes_are_read_at_once_and_kept_behind(tmp_path: Path) -> None:
    """R5: from memory first; once read and written, memory is free, and the next daemon has them too."""
    data = content(300_000)
    async with running(tmp_path) as cache:
        version = await fetched(cache, "v", data)
        part = cache.wholes.read(version, 200_000, 200_000)
        assert part == data[200_000:]
        cache.wholes.done(version)
        await until(lambda: cache.complete({version: len(data)}))
        await until(lambda: not len(cache.wholes))
        assert cache._traffic.in_flight == 0
    async with running(tmp_path) as cache:
        file = cache.attach(version, len(data))
        assert bytes(await file.read(0, len(data), None)) == data
        file.detach()


async def test_many_files_are_written_by_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread for each file would cost more than its bytes."""
    files = {Version(b"%d" % i): content(5000, i) for i in range(200)}
    async with running(tmp_path) as cache:
        calls: list[object] = []
        thread = cache._shelf.thread

        async def counted(function: Callable[..., object], *args: object) -> object:
            calls.append(function)
            return await thread(function, *args)

        monkeypatch.setattr(cache._shelf, "thread", counted)
        for version, data in files.items():
            await fetched(cache, version.decode(), data)
        await until(lambda: all(cache.complete({version: 5000}) for version in files))
        assert len(calls) < 20
        for version, data in files.items():
            cache.wholes.done(version)
            file = cache.attach(version, len(data))
            assert bytes(await file.read(0, len(data), None)) == data
            file.detach()


async def test_memory_is_asked_for_first(tmp_path: Path) -> None:
    """B2: what does not fit has to wait, and is told when there is room."""
    told: list[bool] = []

    class Waiting:
        def pump(self) -> None:
            told.append(True)

    async with running(tmp_path, memory=4 * M) as cache:
        assert cache.wholes.reserve(M)
        assert cache.wholes.reserve(M)
        assert not cache.wholes.reserve(1)
        cache.wholes.call_back(Waiting(), wanted=True)
        assert not told
        cache.wholes.cancel(M)
        assert told
        assert cache.wholes.reserve(M)
        cache.wholes.cancel(2 * M)
        assert cache._traffic.in_flight == 0


async def test_what_nobody_came_for_makes_room(tmp_path: Path) -> None:
    """B2: a wrong guess is not held for ever, also where nothing else is fetched."""
    clock = trio.testing.MockClock()
    done = trio.Event()

    async def main() -> None:
        async with running(tmp_path, memory=4 * M) as cache:
            await fetched(cache, "v", content(M), keep=False)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(9)
            await trio.testing.wait_all_tasks_blocked()
            assert cache.wholes.has(Version(b"v"))
            clock.jump(12)
            await trio.testing.wait_all_tasks_blocked()
            clock.jump(12)
            await trio.testing.wait_all_tasks_blocked()
            assert not len(cache.wholes)
            done.set()

    await trio.to_thread.run_sync(lambda: trio.run(main, clock=clock))
    assert done.is_set()


async def test_what_may_still_change_is_served_for_a_moment_and_not_kept(tmp_path: Path) -> None:
    """R1: as long as any answer of the store, and the disk never has it."""
    async with running(tmp_path) as cache:
        assert cache.wholes.reserve(3)
        cache.wholes.put(Version(b"v"), b"abc", keep=False, until_s=trio.current_time() + 1000)
        assert cache.wholes.read(Version(b"v"), 0, 10) == b"abc"
        assert cache.wholes.reserve(3)
        cache.wholes.put(Version(b"w"), b"abc", keep=False, until_s=trio.current_time())
        assert cache.wholes.read(Version(b"w"), 0, 10) is None
        cache.wholes.done(Version(b"v"))
        assert not len(cache.wholes)
        assert cache._traffic.in_flight == 0
    assert cache_files(tmp_path) == []


async def test_a_version_that_is_forgotten_or_renamed(tmp_path: Path) -> None:
    """R3: bytes are found under the version that they are of, and under no other."""
    async with running(tmp_path) as cache:
        for name in ("a", "b"):
            await fetched(cache, name, name.encode(), keep=False)
        cache.forget(Version(b"a"))
        cache.rekey(Version(b"b"), Version(b"c"))
        assert [cache.wholes.read(Version(v), 0, 9) for v in (b"a", b"b", b"c")] == [None, None, b"b"]
        await cache.evict_all()
        assert not len(cache.wholes)
        assert cache._traffic.in_flight == 0


async def test_the_same_version_twice(tmp_path: Path) -> None:
    """Nothing is counted twice."""
    async with running(tmp_path) as cache:
        await fetched(cache, "v", b"abc", keep=False)
        await fetched(cache, "v", b"abc", keep=False)
        cache.wholes.drop(Version(b"v"))
        assert cache._traffic.in_flight == 0


async def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B1a: reads go on from memory, and nothing is believed to be on the disk."""
    real = os.open

    def full(path: Path, flags: int, mode: int = 0o777, **more: int) -> int:
        if flags & os.O_CREAT and "blocks" in str(path):
            raise OSError(errno.ENOSPC, "full")
        return real(path, flags, mode, **more)

    async with running(tmp_path) as cache:
        monkeypatch.setattr(os, "open", full)
        version = await fetched(cache, "v", b"abc")
        await until(lambda: not cache.wholes._pending)
        assert not cache.complete({version: 3})
        assert cache.wholes.read(version, 0, 9) == b"abc"
        monkeypatch.undo()
        assert cache.used_bytes == cache._room.reserved == 0
        cache.wholes.clear()


async def test_a_file_that_is_being_read_is_not_replaced(tmp_path: Path) -> None:
    """Who reads through its own cache file goes on with it; the second copy goes away."""
    source = Source(content(2 * M))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 2 * M)
        assert bytes(await file.read(0, 10, source)) == source.data[:10]
        await fetched(cache, source.version.decode(), source.data)
        await until(lambda: not cache.wholes._pending)
        assert not file.complete
        assert bytes(await file.read(0, M, source)) == source.data[:M]
        file.detach()
        cache.wholes.clear()
        assert (await cache.look()).found == 0
    assert len(cache_files(tmp_path)) == 1


async def test_what_is_being_written_is_no_stranger(tmp_path: Path) -> None:
    """W6c: a check of the running cache leaves a file alone that is about to become one."""
    async with running(tmp_path) as cache:
        number, path = cache._shelf.allot()
        Path(path).write_bytes(b"abc")
        assert (await cache.mend()).strangers == 0
        assert os.path.exists(path)
        del cache._shelf.arriving[number]
        assert (await cache.mend()).strangers == 1
