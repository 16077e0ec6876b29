"""Journals of an earlier format, torn and damaged ones: what can be read is kept, nothing is thrown away."""

from __future__ import annotations

import glob
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.wal import end_of_records, leaf_with
from volfs.commit.journal import Entry, Journal, Renaming, State
from volfs.commit.salvage import set_aside, torn_tail
from volfs.core.versions import Version

#: The table as volfs 0.1 made it.
_FORMAT_1 = """
CREATE TABLE staged (
    name TEXT PRIMARY KEY, path BLOB NOT NULL, base BLOB, existing INTEGER NOT NULL, state TEXT NOT NULL,
    number INTEGER NOT NULL, created REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO staged VALUES ('a', x'66', x'7631', 7, 'closed', 70, 1.5);
INSERT INTO staged VALUES ('b', x'67', NULL, 0, 'open', 71, 2.5);
PRAGMA user_version=1;
"""

#: As volfs 0.2 made it.
_FORMAT_2 = """
CREATE TABLE staged (
    name TEXT PRIMARY KEY, path BLOB NOT NULL, base BLOB, identity BLOB, existing INTEGER NOT NULL,
    rewritten INTEGER NOT NULL, state TEXT NOT NULL, showing INTEGER NOT NULL, number INTEGER NOT NULL,
    created REAL NOT NULL
) WITHOUT ROWID;
INSERT INTO staged VALUES ('a', x'66', x'7631', x'6f', 7, 0, 'closed', 1, 70, 1.5);
PRAGMA user_version=2;
"""


def filled(file: Path, rows: int, *, crashed: bool = False) -> Path:
    """A journal with rows of some size; `crashed`: as `kill -9` leaves it, with its write-ahead log."""
    journal = Journal(file)
    for number in range(rows):
        journal.add(f"{number:04}", b"%04d" % number + b"/" + b"x" * 200, None, 0, number, State.CLOSED)
    if crashed:
        for suffix in ("", "-wal", "-shm"):
            shutil.copyfile(f"{file}{suffix}", f"{file}.left{suffix}")
    journal.close()
    return Path(f"{file}.left") if crashed else file


def entries(file: Path) -> tuple[list[Entry], bool]:
    """What the next daemon has of it, and whether it says that something was wrong."""
    journal = Journal(file)
    found = journal.entries()
    journal.close()
    return found, journal.damaged


def set_asides(file: Path) -> list[Path]:
    """The damaged journals that were kept."""
    found = file.parent.glob(f"{glob.escape(file.name)}.damaged-*")
    return sorted(path for path in found if not path.name.endswith(("-wal", "-shm")))


def test_format_1_is_taken_over(tmp_path: Path) -> None:
    """Every row is there, and counts as rewritten: format 1 did not tell appends from the rest."""
    file = tmp_path / "j"
    with sqlite3.connect(file) as db:
        db.executescript(_FORMAT_1)
    db.close()
    (first, second), damaged = entries(file)
    again, _ = entries(file)

    assert not damaged
    assert (first.name, first.path, first.base, first.existing) == ("a", b"f", b"v1", 7)
    assert (first.state, first.showing, first.number, first.created) == (State.CLOSED, False, 70, 1.5)
    assert (second.base, second.state, second.is_append) == (None, State.OPEN, False)
    assert not first.is_append
    assert again == [first, second]


def test_format_2_is_taken_over(tmp_path: Path) -> None:
    """Every row is as it was, and knows of no exchange."""
    file = tmp_path / "j"
    with sqlite3.connect(file) as db:
        db.executescript(_FORMAT_2)
    db.close()
    (row,), damaged = entries(file)
    again, _ = entries(file)

    assert not damaged
    assert row == Entry("a", b"f", Version(b"v1"), b"o", 7, False, State.CLOSED, True, 70, 1.5, trace="")
    assert row.is_append
    assert again == [row]


def test_a_journal_that_was_closed_has_no_torn_tail(tmp_path: Path) -> None:
    """Neither one that was closed, nor one that was killed between two records, nor none at all."""
    assert not torn_tail(tmp_path / "none")
    assert not torn_tail(filled(tmp_path / "closed", 10))
    killed = filled(tmp_path / "killed", 10, crashed=True)
    assert not torn_tail(killed)
    found, damaged = entries(killed)
    assert (len(found), damaged) == (10, False)


def test_what_is_cut_off_behind_the_last_record_is_no_loss(tmp_path: Path) -> None:
    """The log keeps space that it does not use at the moment."""
    file = filled(tmp_path / "j", 10, crashed=True)
    log = Path(f"{file}-wal")
    assert end_of_records(log) < log.stat().st_size
    os.truncate(log, log.stat().st_size - 7)
    assert not torn_tail(file)
    found, damaged = entries(file)
    assert (len(found), damaged) == (10, False)


@pytest.mark.parametrize("cut", [1, 7, 24, 4000, 4119])
def test_a_torn_record_costs_that_record(tmp_path: Path, cut: int) -> None:
    """Case 3: wherever the last record is torn, all before it are there, and the loss is said, once."""
    file = filled(tmp_path / "j", 10, crashed=True)
    log = Path(f"{file}-wal")
    os.truncate(log, end_of_records(log) - cut)
    assert torn_tail(file)
    found, damaged = entries(file)
    again, damaged_again = entries(file)

    assert damaged
    assert [one.name for one in found] == [f"{number:04}" for number in range(9)]
    assert (again, damaged_again) == (found, False)


def test_a_log_that_lost_its_header(tmp_path: Path) -> None:
    """Nothing of it can be read, and that is said."""
    file = filled(tmp_path / "j", 3, crashed=True)
    os.truncate(f"{file}-wal", 17)
    assert torn_tail(file)
    assert entries(file)[1]


@pytest.mark.parametrize("name", ["j", "a b", "a#b", "a%20b", "a?b"])
def test_a_damaged_page_costs_its_rows(tmp_path: Path, name: str) -> None:
    """The rows of other pages are read from both ends; the damaged file is kept beside the new one."""
    file = filled(tmp_path / name, 200)
    place = leaf_with(file.read_bytes(), b"0100/xxx")
    with file.open("r+b") as f:
        f.seek(place)
        f.write(os.urandom(4096))
    before = file.read_bytes()
    found, damaged = entries(file)
    again, damaged_again = entries(file)

    assert damaged
    assert 100 < len(found) < 200
    assert {one.path[:4] for one in found} == {one.name.encode() for one in found}
    assert (again, damaged_again) == (found, False)
    (aside,) = set_asides(file)
    assert aside.read_bytes() == before


@pytest.mark.parametrize("content", [b"no journal at all" * 1000, b"SQLite format 3\0" + b"\xff" * 8000])
def test_a_file_that_is_no_journal(tmp_path: Path, content: bytes) -> None:
    """It is set aside as it was, and the new one is empty and works."""
    file = tmp_path / "j"
    file.write_bytes(content)
    found, damaged = entries(file)
    assert (found, damaged) == ([], True)
    (aside,) = set_asides(file)
    assert aside.read_bytes() == content


def test_two_damages_in_one_second_are_both_kept(tmp_path: Path) -> None:
    """What was set aside is not overwritten by what is set aside next."""
    for content in (b"first", b"second"):
        (tmp_path / "j").write_bytes(content)
        set_aside(tmp_path / "j", "name")
    assert sorted(path.read_bytes() for path in set_asides(tmp_path / "j")) == [b"first", b"second"]


def test_a_damaged_journal_of_format_1(tmp_path: Path) -> None:
    """Damage that the change of format meets does not cost the rows that can be read."""
    file = tmp_path / "j"
    with sqlite3.connect(file) as db:
        db.executescript(_FORMAT_1)
        for number in range(200):
            row = (f"c{number:04}", b"x" * 200, None, 0, "closed", number, 3.0)
            db.execute("INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    db.close()
    with file.open("r+b") as f:
        f.seek(file.stat().st_size // 4096 // 2 * 4096)
        f.write(os.urandom(4096))
    found, damaged = entries(file)
    assert damaged
    assert len(found) > 100
    assert all(one.rewritten for one in found)


def test_format_3_is_taken_over(tmp_path: Path) -> None:
    """It knew no renames: they can be noted now, and its rows follow them."""
    journal = Journal(tmp_path / "journal")
    journal.add("name", b"d/f", None, 0, 1)
    journal.close()
    with closing(sqlite3.connect(tmp_path / "journal")) as db:
        db.executescript("DROP TABLE renaming; PRAGMA user_version=3;")
    journal = Journal(tmp_path / "journal")
    assert journal.renamings() == []
    rename = Renaming(b"d", b"e", b"identity")
    with journal.renaming(rename, True) as has_done:
        assert journal.renamings() == [rename]
        has_done()
    assert [entry.path for entry in journal.entries()] == [b"e/f"]
    assert journal.renamings() == []
    journal.close()
