"""W7 seen by whoever has the file open: others take its name, and no byte that is written after that is lost.

The simulation and the kill rounds found each of these as a loss.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import Area
from tests.mount.calls import EXCHANGE, rename_with
from tests.mount.volume import eventually

pytestmark = pytest.mark.modes("local", "cached", "background")


def contents(directory: Path) -> list[str]:
    """What all files in a directory hold."""
    return sorted(path.read_text() for path in directory.iterdir() if path.is_file())


@contextmanager
def appending(path: Path) -> Iterator[int]:
    """A handle that is open while others act."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        yield fd
    finally:
        os.close(fd)


def replaced(area: Area) -> None:
    """Others save a new version, as an editor does."""
    (area.back / "n").write_text("theirs\n")
    (area.back / "n").rename(area.back / "f")


def exchanged(area: Area) -> None:
    """Others swap the file with another one."""
    (area.back / "n").write_text("theirs\n")
    rename_with(EXCHANGE, area.back / "n", area.back / "f")
    (area.back / "n").unlink()


@pytest.mark.parametrize("change", [replaced, exchanged])
def test_writes_after_others_replaced_the_file(area: Area, change: Callable[[Area], None]) -> None:
    """W7c: the handle was opened before, and writes after that was noticed: its version goes beside."""
    (area.here / "f").write_text("one\n")
    area.settle()
    with appending(area.here / "f") as fd:
        change(area)
        eventually(lambda: (area.here / "f").read_text() == "theirs\n", area.volume.window, "it is noticed")
        os.write(fd, b"mine\n")
    area.settle()
    assert contents(area.back) == ["one\nmine\n", "theirs\n"]
    eventually(lambda: contents(area.here) == contents(area.back), area.volume.window, "both are seen here")


def test_a_handle_goes_on_in_its_conflict_copy(area: Area) -> None:
    """W7: what is written after a conflict belongs to the copy; there is one of it, not one a commit."""
    (area.here / "f").write_text("one\n")
    area.settle()
    with appending(area.here / "f") as fd:
        os.write(fd, b"two\n")
        replaced(area)
        os.fsync(fd)
        for line in (b"three\n", b"four\n"):
            os.write(fd, line)
            os.fsync(fd)
        assert os.fstat(fd).st_size == len("one\ntwo\nthree\nfour\n")
    area.settle()
    assert contents(area.back) == ["one\ntwo\nthree\nfour\n", "theirs\n"]


def test_writes_after_others_removed_the_file(area: Area) -> None:
    """W7a: a delete does not outweigh bytes, also those that come after it."""
    (area.here / "f").write_text("one\n")
    area.settle()
    with appending(area.here / "f") as fd:
        (area.back / "f").unlink()
        eventually(lambda: not (area.here / "f").exists(), area.volume.window, "it is noticed")
        os.write(fd, b"mine\n")
    area.settle()
    assert (area.back / "f").read_text() == "one\nmine\n"
    assert (area.here / "f").read_text() == "one\nmine\n"


def test_writes_after_others_removed_the_directory(area: Area) -> None:
    """W7a: the directories are made again."""
    (area.here / "d/e").mkdir(parents=True)
    (area.here / "d/e/f").write_text("one\n")
    area.settle()
    with appending(area.here / "d/e/f") as fd:
        (area.back / "d/e/f").unlink()
        (area.back / "d/e").rmdir()
        (area.back / "d").rmdir()
        eventually(lambda: not (area.here / "d").exists(), area.volume.window, "it is noticed")
        os.write(fd, b"mine\n")
    area.settle()
    assert (area.back / "d/e/f").read_text() == "one\nmine\n"


def test_own_removal_is_final(area: Area) -> None:
    """As on a local disk: what is written into a file that this mount unlinked goes with its last handle."""
    (area.here / "f").write_text("one\n")
    area.settle()
    with appending(area.here / "f") as fd:
        (area.here / "f").unlink()
        os.write(fd, b"mine\n")
        os.fsync(fd)
    area.settle()
    assert os.listdir(area.back) == []


def test_what_a_new_file_replaced_does_not_come_back(area: Area) -> None:
    """W8: renamed over a file and on from there, before it was ever committed."""
    (area.here / "e").write_text("old")
    area.settle()
    with (area.here / "g").open("w") as file:
        file.write("new")
        file.flush()
        (area.here / "g").rename(area.here / "e")
        assert (area.here / "e").read_text() == "new"
        (area.here / "e").rename(area.here / "c")
        assert os.listdir(area.here) == ["c"]
    area.settle()
    assert os.listdir(area.back) == ["c"]
    assert (area.back / "c").read_text() == "new"


@pytest.mark.parametrize("how", [os.O_APPEND, os.O_TRUNC])
def test_two_who_make_the_same_file(area: Area, how: int) -> None:
    """W7: others made it before ours is committed. Who appends does not replace it; who empties it does."""
    fd = os.open(area.here / "f", os.O_WRONLY | os.O_CREAT | how, 0o644)
    (area.back / "f").write_text("theirs\n")
    os.write(fd, b"mine\n")
    os.close(fd)
    area.settle()
    assert contents(area.back) == (["mine\n", "theirs\n"] if how == os.O_APPEND else ["mine\n"])
