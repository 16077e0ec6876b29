"""The journal's rows, over restarts and renames."""

from __future__ import annotations

import errno
import sqlite3
from pathlib import Path

import pytest

from volfs.commit.journal import Journal, State
from volfs.core.versions import Version
from volfs.errors import StoreError


def test_rows_survive_a_restart(tmp_path: Path) -> None:
    """What was added, closed and rebased is there when the file is opened again."""
    journal = Journal(tmp_path / "j")
    journal.add("a", b"d/f", Version(b"v1"), 10, 77)
    journal.add("b", b"g", None, 0, 78)
    journal.rebase("a", Version(b"v2"))
    journal.close_file("a")
    journal.close()
    again = Journal(tmp_path / "j")
    first, second = again.entries()
    assert (first.path, first.base, first.existing, first.state, first.number) == (
        b"d/f",
        b"v2",
        10,
        State.CLOSED,
        77,
    )
    assert (second.path, second.base, second.state) == (b"g", None, State.OPEN)
    again.remove("a")
    again.remove("b")
    assert again.entries() == []
    again.close()


def test_a_renamed_directory_takes_its_files_along(tmp_path: Path) -> None:
    """Only what is below it: neither a name that starts alike nor one with a pattern's letters."""
    journal = Journal(tmp_path / "j")
    paths = {"1": b"d/x", "2": b"d/e/y", "3": b"dd/x", "4": b"d", "5": b"%/x", "6": b"d/\xff\xfe"}
    for name, path in paths.items():
        journal.add(name, path, None, 0, 1)
    journal.move_tree(b"d", b"new/place")
    journal.move("4", b"moved")
    assert {entry.name: entry.path for entry in journal.entries()} == {
        "1": b"new/place/x",
        "2": b"new/place/e/y",
        "3": b"dd/x",
        "4": b"moved",
        "5": b"%/x",
        "6": b"new/place/\xff\xfe",
    }
    journal.close()


def test_the_life_of_a_row(tmp_path: Path) -> None:
    """Each step is there for the next daemon; none of them touches another row."""
    journal = Journal(tmp_path / "j")
    for name in ("a", "b", "c", "d", "other"):
        journal.add(name, b"f", Version(b"v"), 10, 1, identity=b"object")
    journal.close_file("a")
    journal.showing("a", "trace")
    journal.showing("b", "trace")
    journal.showing("b")
    journal.keep("b")
    journal.drop_name("c")
    journal.rewrote("d")
    journal.close()
    again = Journal(tmp_path / "j")
    rows = {entry.name: entry for entry in again.entries()}

    assert {name: (row.state, row.showing, row.rewritten, row.is_append) for name, row in rows.items()} == {
        "a": (State.CLOSED, True, False, True),
        "b": (State.KEPT, True, False, True),
        "c": (State.GONE, False, False, True),
        "d": (State.OPEN, False, True, False),
        "other": (State.OPEN, False, False, True),
    }
    assert {name: row.trace for name, row in rows.items() if row.trace} == {"a": "trace"}
    assert {row.identity for row in rows.values()} == {b"object"}
    assert again.entry("d") == rows["d"]
    assert again.entry("none") is None
    assert not again.damaged
    again.close()


@pytest.mark.parametrize(("base", "existing"), [(None, 10), (Version(b"v"), 0)])
def test_what_is_no_append(tmp_path: Path, base: Version | None, existing: int) -> None:
    """Only a base with something at its end is: neither a new file nor one that began empty."""
    journal = Journal(tmp_path / "j")
    journal.add("a", b"f", base, existing, 1)
    assert [entry.is_append for entry in journal.entries()] == [False]
    journal.close()


def test_a_row_of_a_stray_file(tmp_path: Path) -> None:
    """What nobody knows the path of is kept from the start, and no renamed directory takes it along."""
    journal = Journal(tmp_path / "j")
    journal.add("a", b"", None, 0, 1, State.KEPT)
    journal.move_tree(b"", b"d")
    journal.move_tree(b"d", b"e")
    assert [(entry.path, entry.state) for entry in journal.entries()] == [(b"", State.KEPT)]
    journal.close()


def test_another_format_is_refused(tmp_path: Path) -> None:
    """A journal of a newer volfs is not touched."""
    db = sqlite3.connect(tmp_path / "j")
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(sqlite3.DatabaseError, match="format 99"):
        Journal(tmp_path / "j")


def test_a_full_disk_has_its_errno(tmp_path: Path) -> None:
    """The application gets ENOSPC, not a bare EIO, and the journal goes on when there is room."""
    journal = Journal(tmp_path / "j")
    (pages,) = journal._db.execute("PRAGMA page_count").fetchone()
    journal._db.execute(f"PRAGMA max_page_count={pages}")

    def fill() -> None:
        for k in range(1000):
            journal.add(f"{k:04}", b"x" * 1000, None, 0, 1)

    with pytest.raises(StoreError) as raised:
        fill()
    assert raised.value.errno == errno.ENOSPC
    journal._db.execute("PRAGMA max_page_count=1000000")
    journal.add("last", b"f", None, 0, 1)
    assert journal.entries()[-1].name == "last"
    journal.close()
