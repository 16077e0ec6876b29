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
