"""The journal against the staged files: what is lost, what is stray, and what merely is under way."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commit.conftest import Bench
from volfs.commit.check import JournalCheck, JournalReport, compare, document, verdict
from volfs.commit.journal import Entry, Journal, State
from volfs.commit.kept import Kept


def entry(name: str, state: State = State.CLOSED, *, path: bytes = b"p", showing: bool = False) -> Entry:
    """A row."""
    return Entry(
        name=name,
        path=path,
        base=None,
        identity=None,
        existing=0,
        rewritten=False,
        state=state,
        showing=showing,
        number=1,
        created=0.0,
    )


@given(
    rows=st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.sampled_from(State), st.booleans())),
    names=st.sets(st.sampled_from("abcdefgh")),
)
def test_compare(rows: dict[str, tuple[State, bool]], names: set[str]) -> None:
    """Every file without a row is stray; of the rows without a file those that no crash can explain."""
    entries = [entry(name, state, showing=showing) for name, (state, showing) in rows.items()]
    found = compare(entries, names)
    assert set(found.strays) == names - set(rows)
    assert {one.name for one in found.lost} == {
        name
        for name, (state, showing) in rows.items()
        if name not in names and state is not State.GONE and not showing
    }


def test_copies_on_their_way_are_not_stray() -> None:
    """A copy of a commit is the store's matter: its bytes are staged elsewhere."""
    assert compare([], ["copy-0", "swap-0", "lane-0", "a"]).strays == ["a"]


async def test_nothing_to_find(bench: Bench) -> None:
    """Files of all states, and one that was just being made, are no damage."""
    for state in State:
        name = bench.left(b"f", b"x")
        bench.journal._set_state(name, state)
    bench.staging.create().close()
    report = await JournalCheck(bench.staging, bench.journal).mend()

    assert (report.found, report.remaining) == (0, 0)
    assert (report.rows, report.files, report.kept) == (4, 5, 1)
    assert len(bench.journal.entries()) == 4
    assert len(bench.staging.names()) == 5


async def test_a_staged_file_that_is_gone(bench: Bench) -> None:
    """Lost bytes are named, and stay damage although their row goes: nothing brings them back."""
    kept, lost = bench.left(b"kept", b"x"), bench.left(b"d/lost", b"y")
    bench.journal.close_file(lost)
    bench.staging.remove(lost)
    check = JournalCheck(bench.staging, bench.journal)
    looked = await check.look()
    assert len(bench.journal.entries()) == 2
    mended = await check.mend()

    for report in (looked, mended):
        assert (report.found, report.remaining) == (1, 1)
        assert report.document()["lost_files"] == ["d/lost"]
    assert [one.name for one in bench.journal.entries()] == [kept]
    assert (await check.mend()).found == 0


async def test_a_staged_file_without_a_row(bench: Bench) -> None:
    """It is not deleted: it becomes a kept file of which nobody knows the path."""
    name = bench.left(b"f", b"precious")
    bench.journal.remove(name)
    check = JournalCheck(bench.staging, bench.journal)
    looked = await check.look()
    assert bench.journal.entries() == []
    mended = await check.mend()
    (kept,) = await Kept(bench.store, bench.staging, bench.journal).files()

    assert (looked.found, looked.remaining) == (1, 1)
    assert (mended.found, mended.remaining) == (1, 0)
    assert (kept.id, kept.path, kept.size) == (name, b"", 8)
    assert (await check.mend()).found == 0


async def test_files_in_use_are_neither_lost_nor_stray(bench: Bench) -> None:
    """A descriptor keeps the bytes: their row must stay, so that they are committed; that they hang by it
    is told.
    """
    removed, stray = bench.left(b"f", b"x"), bench.left(b"g", b"y")
    bench.staging.remove(removed)
    bench.journal.remove(stray)
    report = await JournalCheck(bench.staging, bench.journal, lambda: {removed, stray}).mend()

    assert ([one.name for one in report.held], report.lost, report.strays) == ([removed], [], [])
    assert (report.found, report.remaining) == (1, 1)
    assert [one.name for one in bench.journal.entries()] == [removed]


async def test_what_changes_during_the_listing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon goes on meanwhile: a listing that is old by the time it comes proves nothing."""
    ended = bench.left(b"ended", b"x")
    names = bench.staging.names

    def listing() -> list[str]:
        found = names()
        os.unlink(ended, dir_fd=bench.staging.directory)
        fd = os.open("made", os.O_WRONLY | os.O_CREAT, dir_fd=bench.staging.directory)
        os.write(fd, b"new")
        os.close(fd)
        return found

    monkeypatch.setattr(bench.staging, "names", listing)
    bench.journal.remove(ended)
    bench.journal.add("made", b"made", None, 0, 1)
    report = await JournalCheck(bench.staging, bench.journal).mend()

    assert report.found == 0
    assert [one.name for one in bench.journal.entries()] == ["made"]


def test_verdict(tmp_path: Path) -> None:
    """A sound journal passes while it is open, also at a path with letters that mean something in a URI."""
    file = tmp_path / "a#b%20?c" / "journal.db"
    file.parent.mkdir()
    journal = Journal(file)
    journal.add("a", b"f", None, 0, 1)
    assert verdict(file) is None
    journal.close()
    damaged = file.parent / "damaged"
    shutil.copyfile(file, damaged)
    with damaged.open("r+b") as f:
        f.seek(4096)
        f.write(b"\xff" * 4096)
    assert verdict(damaged) is not None
    damaged.write_bytes(b"no journal" * 1000)
    assert verdict(damaged) is not None
    with pytest.raises(sqlite3.OperationalError):
        verdict(file.parent / "none")
    assert not (file.parent / "none").exists()


def test_the_report_fits_the_control_plane() -> None:
    """However much is wrong, the document stays below the kernel's 64 KiB; the counts are whole."""
    lost = [entry("0" * 32, path=b"x" * 250)] * 100_000
    report = document(JournalReport(lost=lost, strays=["0" * 32] * 100_000), None)
    assert len(repr(report)) < 60_000
    assert (report["found"], report["journal"]["lost"]) == (200_000, 100_000)
