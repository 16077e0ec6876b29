"""Renames that a crash interrupted: the rows of the journal follow what the store did (W8)."""

from __future__ import annotations

import errno
import os
from contextlib import suppress

import pytest
import trio.testing

from tests.commit.conftest import Bench
from volfs.commit.journal import Renaming, State
from volfs.commit.recover import Recovery
from volfs.errors import StoreError


def interrupted(bench: Bench, old: str, new: str, *, done: bool, exchange: bool = False) -> None:
    """What a daemon leaves that was killed before the store had renamed, or right after."""
    identity = bench.store._stat(old.encode()).identity
    rename = Renaming(old.encode(), new.encode(), identity, exchange)
    bench.journal.note(rename)
    if not done:
        return
    if exchange:
        os.rename(bench.root / new, bench.root / "aside")
    os.rename(bench.root / old, bench.root / new)
    if exchange:
        os.rename(bench.root / "aside", bench.root / old)


def files(bench: Bench) -> dict[str, bytes]:
    return {
        str(path.relative_to(bench.root)): path.read_bytes()
        for path in bench.root.rglob("*")
        if path.is_file() and ".volfs" not in path.parts
    }


@pytest.mark.parametrize("done", [True, False])
async def test_files_follow_their_directory(bench: Bench, done: bool) -> None:
    """Nothing is split: all that a directory held is in the one place or in the other."""
    (bench.root / "d").mkdir()
    (bench.root / "d" / "there").write_bytes(b"there")
    bench.journal.close_file(bench.left(b"d/new", b"new"))
    bench.journal.close_file(bench.left(b"dd", b"another name"))
    interrupted(bench, "d", "e", done=done)
    await bench.recover()
    where = "e" if done else "d"
    assert files(bench) == {f"{where}/there": b"there", f"{where}/new": b"new", "dd": b"another name"}
    assert (bench.root / "d").exists() is not done
    assert bench.journal.renamings() == [] == bench.journal.entries()


@pytest.mark.parametrize("done", [True, False])
async def test_the_bytes_follow_their_file(bench: Bench, done: bool) -> None:
    """A file that was changed and renamed has one name, and its new bytes; what it replaced is gone."""
    (bench.root / "f").write_bytes(b"base")
    identity = bench.store._stat(b"f").identity
    (bench.root / "g").write_bytes(b"good")
    bench.journal.close_file(bench.left(b"g", b"what is replaced", bench.version("g")))
    bench.journal.close_file(bench.left(b"f", b"base and more", bench.version("f"), 4, identity))
    interrupted(bench, "f", "g", done=done)
    result = await bench.recover()
    if done:
        assert files(bench) == {"g": b"base and more"}
    else:
        assert files(bench) == {"f": b"base and more", "g": b"what is replaced"}
    assert result.conflicts == 0


@pytest.mark.parametrize("done", [True, False])
async def test_exchanged_directories_keep_their_files(bench: Bench, done: bool) -> None:
    """Each row goes where its directory is."""
    for name in ("d", "e"):
        (bench.root / name).mkdir()
        bench.journal.close_file(bench.left(f"{name}/new".encode(), name.encode()))
    interrupted(bench, "d", "e", done=done, exchange=True)
    await bench.recover()
    assert files(bench) == ({"d/new": b"e", "e/new": b"d"} if done else {"d/new": b"d", "e/new": b"e"})


async def test_nothing_is_committed_before_the_store_has_said_which(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A store that does not tell whether it renamed gets no bytes, which might go to the wrong place."""
    (bench.root / "d").mkdir()
    bench.journal.close_file(bench.left(b"d/new", b"new"))
    interrupted(bench, "d", "e", done=True)
    stat = bench.store.stat
    refusals = 3

    async def refuse(path: bytes) -> object:
        nonlocal refusals
        if refusals and path == b"e":
            refusals -= 1
            raise StoreError("refused", errno=errno.EIO)
        return await stat(path)

    monkeypatch.setattr(bench.store, "stat", refuse)
    recovery = Recovery(bench.store, bench.staging, bench.journal)
    await recovery.start()
    assert files(bench) == {}
    assert "refused" in (recovery.last_error or "")
    await recovery.run()
    assert files(bench) == {"e/new": b"new"}


def test_a_rename_that_failed_is_forgotten(bench: Bench) -> None:
    """An error of the store is not a crash: the rows stay where they are."""
    bench.left(b"d/f", b"bytes")
    with suppress(OSError), bench.journal.renaming(Renaming(b"d", b"e", b"identity"), True):
        raise OSError(errno.EACCES, "Permission denied")
    assert bench.journal.renamings() == []
    assert [entry.path for entry in bench.journal.entries()] == [b"d/f"]


def test_an_error_after_the_rename_does_not_undo_it(bench: Bench) -> None:
    """What fails once the store has done it leaves the rows where the store has the files."""
    bench.left(b"d/f", b"bytes")
    with suppress(OSError), bench.journal.renaming(Renaming(b"d", b"e", b"identity"), True) as has_done:
        has_done()
        raise OSError(errno.EIO, "Input/output error")
    assert bench.journal.renamings() == []
    assert [entry.path for entry in bench.journal.entries()] == [b"e/f"]


def test_no_later_row_is_taken_for_an_earlier_one(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """W6: a rename whose end could not be written down is settled before the next row comes, or a file that
    got one of the two names since would follow it, or go as what it replaced.
    """
    journal = bench.journal
    bench.left(b"f", b"moved")
    with monkeypatch.context() as patch:
        patch.setattr(journal, "renamed", _refuse)
        with journal.renaming(Renaming(b"f", b"g", b"identity"), True) as has_done:
            has_done()
        assert journal.renamings() != []
        with pytest.raises(StoreError):
            bench.left(b"f", b"too early")
    journal.close_file(bench.left(b"f", b"made later"))
    assert journal.renamings() == []
    assert sorted((entry.path, entry.state) for entry in journal.entries() if entry.path) == [
        (b"f", State.CLOSED),
        (b"g", State.OPEN),
    ]


def _refuse(rename: Renaming) -> None:
    raise StoreError("the journal cannot be written", errno=errno.EIO)
