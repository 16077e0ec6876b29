"""Further descriptors of a file: how many there are, who uses them, and what they may never show."""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from volfs.errors import StoreError, VersionChanged
from volfs.store import reading, streams
from volfs.store.attributes import version_of
from volfs.store.directory import DirectoryStore
from volfs.store.reading import FileReader
from volfs.store.streams import WORTH_BYTES, StreamLimit, Streams, fill, open_stream

SIZE = 64 * WORTH_BYTES


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DirectoryStore]:
    """A store that counts as remote, with two files."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(os.urandom(SIZE))
    opened = DirectoryStore(tmp_path, local=False)
    yield opened
    opened.close()


def memory(size: int) -> memoryview:
    """Memory that begins on a page, as the cache gives it."""
    return memoryview(mmap.mmap(-1, size))


class Gate:
    """Holds calls of `fill` until so many are inside, and sees which descriptors they have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, expected: int) -> None:
        self.seen: list[int] = []
        self._all = threading.Barrier(expected)
        monkeypatch.setattr(reading, "fill", self._fill)

    def _fill(self, fd: int, buffer: memoryview, offset: int) -> object:
        self.seen.append(fd)
        self._all.wait(10)
        return fill(fd, buffer, offset)


async def at_once(reader: FileReader, count: int, size: int = WORTH_BYTES) -> None:
    """So many reads side by side."""
    async with trio.open_nursery() as nursery:
        for number in range(count):
            nursery.start_soon(reader.read_into, memory(size), number * size)


async def opened(store: DirectoryStore, path: bytes) -> FileReader:
    """The reader of a file."""
    reader = await store.open(path)
    assert isinstance(reader, FileReader)
    return reader


async def test_reads_at_once_have_a_descriptor_each(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen of them; the next ones share, and later ones use what is there."""
    gate = Gate(monkeypatch, 16)
    reader = await opened(store, b"a")
    await at_once(reader, 16)
    assert len(set(gate.seen)) == 16
    await at_once(reader, 32)
    assert len(set(gate.seen)) == 16
    reader.close()


async def test_small_reads_open_nothing(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random read costs one request, whatever goes on beside it."""
    gate = Gate(monkeypatch, 4)
    reader = await opened(store, b"a")
    await at_once(reader, 4, size=4096)
    assert set(gate.seen) == {reader.fd}
    reader.close()


async def test_one_limit_for_all_files(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who needs a stream when there is no more closes an idle one of another file; busy ones stay."""
    monkeypatch.setattr(streams, "_MOST_IN_ALL", 3)
    Gate(monkeypatch, 4)
    one, two = await opened(store, b"a"), await opened(store, b"b")
    before = len(os.listdir("/proc/self/fd"))
    await at_once(one, 4)
    await at_once(two, 4)
    with trio.fail_after(10):
        while len(os.listdir("/proc/self/fd")) > before + 3:
            await trio.sleep(0.001)
    one.close()
    two.close()


def test_no_stream_is_taken_from_who_uses_it() -> None:
    """At the limit, with all of them busy, there is none to be had."""
    closed: list[int] = []
    limit = StreamLimit()
    first, second = Streams(limit, closed.append), Streams(limit, closed.append)
    for number in range(streams._MOST_IN_ALL):
        holder = first if number < streams._MOST else Streams(limit, closed.append)
        assert holder.may_open()
    assert not second.may_open()
    assert closed == []
    first.give(7)
    assert second.may_open()
    assert closed == [7]


async def test_a_file_that_cannot_be_opened_again(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All reads then share the descriptor that there is, and nobody tries again."""
    tried = []

    def refuse(fd: int) -> int:
        tried.append(fd)
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(reading, "open_stream", refuse)
    gate = Gate(monkeypatch, 4)
    reader = await opened(store, b"a")
    await at_once(reader, 4)
    await at_once(reader, 4)
    assert set(gate.seen) == {reader.fd}
    assert len(tried) <= 3
    reader.close()


async def test_a_reader_closed_under_its_reads(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They end well, over all descriptors, and these are closed after."""
    data = (tmp_path / "a").read_bytes()
    gate = Gate(monkeypatch, 4)
    before = len(os.listdir("/proc/self/fd"))
    reader = await opened(store, b"a")
    buffers = [memory(WORTH_BYTES) for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for number, buffer in enumerate(buffers[:3]):
            nursery.start_soon(reader.read_into, buffer, number * WORTH_BYTES)
        with trio.fail_after(10):
            while len(gate.seen) < 3:
                await trio.sleep(0.001)
        reader.close()
        other = await opened(store, b"a")
        nursery.start_soon(other.read_into, buffers[3], 3 * WORTH_BYTES)
    assert b"".join(buffers) == data[: 4 * WORTH_BYTES]
    other.close()
    with trio.fail_after(10):
        while len(os.listdir("/proc/self/fd")) > before:
            await trio.sleep(0.001)


async def test_a_reader_closed_while_a_stream_is_opened(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The read ends with an error, and each descriptor is closed once: its number may be another file's."""
    opening, go = threading.Event(), threading.Event()
    closed: list[int] = []
    let_go = store.let_go

    def slow(fd: int) -> int:
        opening.set()
        assert go.wait(10)
        return open_stream(fd)

    def counted(fd: int) -> None:
        closed.append(fd)
        let_go(fd)

    monkeypatch.setattr(store, "let_go", counted)
    monkeypatch.setattr(reading, "open_stream", slow)
    reader = await opened(store, b"a")
    raised = []

    async def read() -> None:
        try:
            await reader.read_into(memory(WORTH_BYTES), 0)
        except VersionChanged as error:
            raised.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        nursery.start_soon(read)
        await trio.to_thread.run_sync(opening.wait, 10)
        reader.close()
        go.set()
    assert len(raised) == 1
    assert len(closed) == len(set(closed)) == 2


async def test_another_file_behind_the_path(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R3a: a server that opens by path may open another object: its bytes come with its own version."""
    (tmp_path / "new").write_bytes(b"x" * SIZE)

    def by_path(fd: int) -> int:
        os.rename(tmp_path / "new", tmp_path / "a")
        return os.open(tmp_path / "a", os.O_RDONLY)

    reader = await opened(store, b"a")
    before = (await reader.stat()).version
    monkeypatch.setattr(reading, "open_stream", by_path)
    Gate(monkeypatch, 2)
    found = []

    async def read(number: int) -> None:
        buffer = memory(WORTH_BYTES)
        _, version, _ = await reader.read_into(buffer, number * WORTH_BYTES)
        found.append((bytes(buffer) == b"x" * WORTH_BYTES, version == before))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read, 0)
        nursery.start_soon(read, 1)
    assert [as_before for foreign, as_before in found if foreign] == [False]
    reader.close()


async def test_a_stream_asks_the_server_for_attributes(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3a: what the kernel remembers is of no use; where it cannot be made to ask, there is no stream."""
    asked = []
    monkeypatch.setattr(streams, "_refresh", asked.append)
    reader = await opened(store, b"a")
    os.close(open_stream(reader.fd))
    assert len(asked) == 1

    def cannot(fd: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(streams, "_refresh", cannot)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="not implemented"):
        open_stream(reader.fd)
    assert len(os.listdir("/proc/self/fd")) == before
    reader.close()


@pytest.mark.parametrize("offset", [0, 512, 4096, SIZE - 100])
@pytest.mark.parametrize("place", [0, 1])
def test_what_cannot_be_read_directly_is_read_all_the_same(
    store: DirectoryStore, tmp_path: Path, offset: int, place: int
) -> None:
    """Memory or an offset that O_DIRECT does not take costs the flag, not the read."""
    fd = os.open(tmp_path / "a", os.O_RDONLY)
    streams.bypass_cache(fd)
    buffer = memory(8192)[place : place + 4096]
    n, version = fill(fd, buffer, offset)
    assert buffer[:n] == (tmp_path / "a").read_bytes()[offset : offset + 4096]
    assert version == version_of(os.fstat(fd))
    os.close(fd)


def test_a_file_system_without_direct_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag is refused: reads go through the page cache."""
    (tmp_path / "f").write_bytes(b"bytes")
    fd = os.open(tmp_path / "f", os.O_RDONLY)

    def refuse(fd: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETFL:
            raise OSError(22, "Invalid argument")
        return 0

    with monkeypatch.context() as patched:
        patched.setattr(fcntl, "fcntl", refuse)
        streams.bypass_cache(fd)
    buffer = memory(4096)
    assert fill(fd, buffer, 0)[0] == 5
    os.close(fd)


async def test_errors_of_a_read_are_the_stores(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the descriptor is used again after it."""

    def fail(fd: int, buffer: memoryview, offset: int) -> object:
        raise OSError(5, "Input/output error")

    reader = await opened(store, b"a")
    with monkeypatch.context() as patched:
        patched.setattr(reading, "fill", fail)
        with pytest.raises(StoreError) as raised:
            await reader.read_into(memory(4096), 0)
    assert raised.value.errno == 5
    assert (await reader.read_into(memory(4096), 0))[0] == 4096
    reader.close()
