"""Copies over several streams: the bytes, what is seen of them, and file systems that cannot."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from volfs.core.spans import Extent
from volfs.store import aio, writing
from volfs.store.writing import WideWriter

#: A piece, so that a test moves little.
P = 1 << 20


class Files:
    """A source with random bytes, and an empty target."""

    def __init__(self, directory: Path, size: int) -> None:
        self.data = os.urandom(size)
        (directory / "source").write_bytes(self.data)
        self.source = os.open(directory / "source", os.O_RDWR)
        self.target = os.open(directory / "target", os.O_RDWR | os.O_CREAT)
        self.seen = bytearray(size)
        self.pieces = 0

    def observe(self, offset: int, piece: memoryview) -> None:
        """Note what is seen, and where."""
        assert offset % (1 << 20) == 0
        self.seen[offset : offset + len(piece)] = piece
        self.pieces += 1

    def copied(self) -> bytes:
        """The target's bytes."""
        return os.pread(self.target, len(self.data) + 1, 0)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """Two whole pieces and an odd rest."""
    monkeypatch.setattr(writing, "PIECE_BYTES", P)
    made = Files(tmp_path, 2 * P + 12_345)
    yield made
    os.close(made.source)
    os.close(made.target)


def descriptors() -> int:
    """How many this process has."""
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("parallel", [True, False])
def test_all_bytes_arrive_and_are_seen(files: Files, parallel: bool) -> None:
    """In whatever order they are written, each is observed at its place."""
    before = descriptors()
    made = WideWriter(files.target, parallel=parallel)
    made.bring(files.source, [Extent(0, len(files.data))], files.observe)
    made.close()
    assert files.copied() == files.data
    assert files.seen == files.data
    assert made.size == len(files.data)
    assert descriptors() == before


def test_parts_in_any_order_and_again(files: Files) -> None:
    """A part that is brought a second time has its bytes of then."""
    made = WideWriter(files.target, parallel=True)
    made.bring(files.source, [Extent(2 * P, 12_345), Extent(0, P)], files.observe)
    os.pwrite(files.source, b"changed", 5)
    made.bring(files.source, [Extent(P, P), Extent(0, P)], files.observe)
    made.close()
    assert files.copied() == os.pread(files.source, len(files.data) + 1, 0)
    assert files.seen == files.copied()


def _fail(code: int) -> None:
    raise OSError(code, os.strerror(code))


@pytest.mark.parametrize("what", ["no queue", "no direct writes", "each write refused", "no memory left"])
def test_where_it_cannot_be_done_bytes_are_written_one_by_one(
    files: Files, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """As a file system, a machine and a daemon with many copies under way say so."""
    held = 0
    if what == "no queue":
        monkeypatch.setattr(writing, "Queue", lambda depth: _fail(errno.EPERM))
    elif what == "no direct writes":
        monkeypatch.setattr(writing.fcntl, "fcntl", lambda *args: _fail(errno.EINVAL))
    elif what == "each write refused":
        monkeypatch.setattr(aio.Queue, "write", lambda *args: _fail(errno.EINVAL))
    else:
        while writing._BUFFERS.acquire(blocking=False):
            held += 1
    made = WideWriter(files.target, parallel=True)
    made.bring(files.source, [Extent(0, len(files.data))], files.observe)
    made.close()
    for _ in range(held):
        writing._BUFFERS.release()
    assert files.copied() == files.data
    assert files.seen == files.data


class _Short:
    """A queue whose writes fall short, or fail."""

    def __init__(self, result: int) -> None:
        self._result = result
        self._tags: list[int] = []

    def write(self, tag: int, fd: int, address: int, size: int, offset: int) -> None:
        """Write as much as the result will say."""
        os.pwrite(fd, (ctypes.c_char * max(0, self._result)).from_address(address), offset)
        self._tags.append(tag)

    def wait(self) -> tuple[int, int]:
        """The last one ends first."""
        return self._tags.pop(), self._result

    def close(self) -> None:
        """Nothing is under way."""


@pytest.mark.parametrize("result", [-errno.EINVAL, 0, 4096])
def test_what_was_not_written_is_written_again(
    files: Files, monkeypatch: pytest.MonkeyPatch, result: int
) -> None:
    """A direct write that is refused late, or falls short, is completed as a plain one."""
    monkeypatch.setattr(writing, "Queue", lambda depth: _Short(result))
    made = WideWriter(files.target, parallel=True)
    made.bring(files.source, [Extent(0, len(files.data))], None)
    made.close()
    assert files.copied() == files.data


def test_an_error_is_raised_when_nothing_is_under_way_any_more(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ENOSPC of one piece ends it; memory and descriptors are given back."""
    before = descriptors()
    original = aio.Queue.wait
    monkeypatch.setattr(aio.Queue, "wait", lambda self: (original(self)[0], -errno.ENOSPC))
    made = WideWriter(files.target, parallel=True)
    with pytest.raises(OSError, match="No space") as raised:
        made.bring(files.source, [Extent(0, len(files.data))], None)
    assert raised.value.errno == errno.ENOSPC
    made.close()
    assert descriptors() == before
    assert writing._BUFFERS._value == 12


@pytest.mark.parametrize("parallel", [True, False])
def test_a_source_that_is_shorter_is_an_error(files: Files, parallel: bool) -> None:
    """Nothing is made up for bytes that are not there."""
    os.ftruncate(files.source, P + 1)
    made = WideWriter(files.target, parallel=parallel)
    with pytest.raises(OSError, match="shorter"):
        made.bring(files.source, [Extent(0, len(files.data))], None)
    made.close()


def test_the_memory_of_all_copies_is_bounded(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most twelve pieces at a time, for one file at most eight."""
    most = 0
    original = aio.Queue

    def queue(depth: int) -> aio.Queue:
        nonlocal most
        most = max(most, depth)
        assert writing._BUFFERS._value == 12 - depth
        return original(depth)

    monkeypatch.setattr(writing, "Queue", queue)
    os.ftruncate(files.source, 20 * P)
    made = WideWriter(files.target, parallel=True)
    made.bring(files.source, [Extent(0, 20 * P)], None)
    made.close()
    assert most == 8
    assert writing._BUFFERS._value == 12
