"""The journal: what is staged, since which base version, in which state. SQLite, one row a staged file.

It does not hold bytes, and it does not decide what a row means after a crash
(`recover` does).

*Invariants:* a row exists before the first byte of its staged file is written,
and is deleted only after the file was; so a staged file without a row means that
a row was lost. `path` follows renames, of the file and of directories above it; a
rename that is under way in the store is noted before, and off in the step in which the rows follow.

*Concurrency:* used from the trio thread only; no statement waits for anything
but the local disk. WAL without an fsync for each transaction: rows must survive
`kill -9`, which the kernel's page cache does; what must survive a power cut is
made durable by fsync of the application, and that is a commit.
"""

from __future__ import annotations

import enum
import errno
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from volfs.commit.salvage import set_aside, torn_tail
from volfs.commit.staging import DiskFull
from volfs.core.versions import Version
from volfs.errors import StoreError
from volfs.telemetry import get_logger

__all__ = ["Entry", "Journal", "Renaming", "State"]

log = get_logger(__name__)

_FORMAT = 4

_RENAMING = """
-- Renames that the store is being told to do. After a crash nobody but the store knows which were done.
CREATE TABLE renaming (
    old      BLOB NOT NULL,
    new      BLOB NOT NULL,
    identity BLOB NOT NULL,    -- of the object that was at `old`: if it is at `new`, it was done
    exchange INTEGER NOT NULL, -- 1: what was at `new` is at `old` then
    PRIMARY KEY (old, new)
) WITHOUT ROWID;
"""

_SCHEMA = f"""
-- One staged file. The table is the record of what this mount owes the store.
CREATE TABLE staged (
    name      TEXT PRIMARY KEY,  -- of the file in the staging directory
    path      BLOB NOT NULL,     -- where it belongs in the volume, as of the last rename; '': not known
    base      BLOB,              -- version that it was made from; NULL: it replaces whatever is there
    identity  BLOB,              -- of the object whose content it is; NULL: it was created here
    existing  INTEGER NOT NULL,  -- bytes taken over from the base: an append starts there
    rewritten INTEGER NOT NULL,  -- 1: something below `existing` was written or cut, so it is no append
    state     TEXT NOT NULL,     -- 'open': not acknowledged; 'closed': acknowledged, must be committed;
                                 -- 'kept': of an earlier daemon, offered to the user;
                                 -- 'gone': it has no name any more, and goes with its last handle
    showing   INTEGER NOT NULL,  -- 1: a commit is about to give the file its name, or has just done so
    number    INTEGER NOT NULL,  -- inode of the staged file: how a rename into the store is recognized
    created   REAL NOT NULL,     -- seconds since the epoch
    trace     TEXT NOT NULL DEFAULT ''  -- of the copy that `showing` speaks of: the store tells by it what
                                 -- came out of an exchange; '': nothing can
) WITHOUT ROWID;
{_RENAMING}
"""

#: 512 KiB each of table and log: some thousands of rows, and more than the pages that a transaction changes.
_RESERVED_PAGES = 128

#: What a daemon of format 1 left counts as no append: it did not note what was rewritten.
_FROM_1 = """
BEGIN;
ALTER TABLE staged ADD COLUMN rewritten INTEGER NOT NULL DEFAULT 1;
ALTER TABLE staged ADD COLUMN identity BLOB;
ALTER TABLE staged ADD COLUMN showing INTEGER NOT NULL DEFAULT 0;
PRAGMA user_version=2;
COMMIT;
"""

_FROM_2 = """
BEGIN;
ALTER TABLE staged ADD COLUMN trace TEXT NOT NULL DEFAULT '';
PRAGMA user_version=3;
COMMIT;
"""

_FROM_3 = f"BEGIN; {_RENAMING} PRAGMA user_version=4; COMMIT;"

#: By the format that a journal has.
_CHANGES = {
    0: f"BEGIN; {_SCHEMA} PRAGMA user_version={_FORMAT}; COMMIT;",
    1: _FROM_1 + _FROM_2 + _FROM_3,
    2: _FROM_2 + _FROM_3,
    3: _FROM_3,
}

_COLUMNS = "name, path, base, identity, existing, rewritten, state, showing, number, created, trace"
_MARKS = ", ".join("?" * 11)


class State(enum.Enum):
    """How far an entry is acknowledged to the application."""

    OPEN = "open"
    CLOSED = "closed"
    KEPT = "kept"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row. `created` in seconds since the epoch, `existing` in bytes."""

    name: str
    path: bytes
    base: Version | None
    identity: bytes | None
    existing: int
    rewritten: bool
    state: State
    showing: bool
    number: int
    created: float
    trace: str = ""

    @property
    def is_append(self) -> bool:
        """Whether it is its base with more at the end, so that it may be committed unacknowledged (W6)."""
        return self.base is not None and self.existing > 0 and not self.rewritten


@dataclass(frozen=True, slots=True)
class Renaming:
    """A rename of what has `identity`, from the path `old` to `new`; or the two are exchanged."""

    old: bytes
    new: bytes
    identity: bytes
    exchange: bool = False


class Journal:
    """The table, and the ways that it changes. StoreError: ENOSPC if the local disk is full, else EIO.

    `damaged`: the file was torn or no journal; what could be read is here, and the old one lies beside it.
    """

    def __init__(self, file: Path) -> None:
        self._ends: list[tuple[Renaming, bool]] = []  # of renames, that are not written down yet
        self.damaged = torn_tail(file)
        if self.damaged:
            log.error("the journal's last record is torn: it is lost, the others are here", path=str(file))
        try:
            self._open(file)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            log.error(
                "the journal is damaged; going on with what can be read", path=str(file), error=str(error)
            )
            self.damaged = True
            rows = set_aside(file, _COLUMNS)
            self._open(file)
            for row in rows:
                self._execute(f"INSERT OR IGNORE INTO staged ({_COLUMNS}) VALUES ({_MARKS})", row)

    def _open(self, file: Path) -> None:
        self._db = sqlite3.connect(file, isolation_level=None)
        try:
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=OFF")
            (found,) = self._db.execute("PRAGMA user_version").fetchone()
            if found in _CHANGES:
                self._db.executescript(_CHANGES[found])
            elif found != _FORMAT:
                raise sqlite3.DatabaseError(f"journal format {found}, this volfs knows {_FORMAT}")
            (verdict,) = self._db.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(f"damaged: {verdict}")
            self._reserve()
        except BaseException:
            self._db.close()
            raise

    def _reserve(self) -> None:
        """Hold space for the rows to come: on a full disk, commits must be recorded to free any."""
        db = self._db
        try:
            # The log is used from its start again before it outgrows what it has.
            db.execute(f"PRAGMA wal_autocheckpoint={_RESERVED_PAGES // 2}")
            # At each start, for the log, which SQLite deletes when it is closed; the table's pages are there
            # already. Two transactions: pages that come and go in one are never written.
            db.execute("CREATE TABLE reserve AS SELECT zeroblob(?) AS bytes", (_RESERVED_PAGES * 4096,))
            db.execute("DROP TABLE reserve")
            db.execute("PRAGMA wal_checkpoint(RESTART)")
        except sqlite3.OperationalError as error:
            log.warning("the journal cannot reserve space", error=str(error))
            if db.in_transaction:
                db.execute("ROLLBACK")

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            message = f"the journal cannot be written: {error}; free space where the cache directory is"
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                raise DiskFull(message) from error
            raise StoreError(message, errno=errno.EIO) from error

    def add(
        self,
        name: str,
        path: bytes,
        base: Version | None,
        existing: int,
        number: int,
        state: State = State.OPEN,
        identity: bytes | None = None,
    ) -> None:
        self._write_down()  # or a later row would be taken for one that the rename found
        self._execute(
            f"INSERT INTO staged ({_COLUMNS}) VALUES ({_MARKS})",
            (name, path, base, identity, existing, 0, state.value, 0, number, time.time(), ""),
        )

    def rebase(self, name: str, base: Version | None, identity: bytes | None = None) -> None:
        """Our own change of attributes or name gave the base a new version; or there is one now, with this
        identity.
        """
        self._execute(
            "UPDATE staged SET base = ?, identity = ifnull(?, identity) WHERE name = ?",
            (base, identity, name),
        )

    def rewrote(self, name: str) -> None:
        """Something of what was taken over from the base is about to change."""
        self._execute("UPDATE staged SET rewritten = 1 WHERE name = ?", (name,))

    def showing(self, name: str, trace: str = "") -> None:
        """A commit is about to give the staged file its name in the store: from here on it may be there.

        `trace`: of the copy, see `store.base.Upload.trace`; that of an earlier one is forgotten.
        """
        self._execute("UPDATE staged SET showing = 1, trace = ? WHERE name = ?", (trace, name))

    def close_file(self, name: str) -> None:
        """The application was told that its bytes are safe."""
        self._set_state(name, State.CLOSED)

    def keep(self, name: str) -> None:
        """No application stands behind it any more, and it was not acknowledged: the user decides."""
        self._set_state(name, State.KEPT)

    def drop_name(self, name: str) -> None:
        """Its last name was taken away: nothing is left to commit to."""
        self._set_state(name, State.GONE)

    def _set_state(self, name: str, state: State) -> None:
        self._execute("UPDATE staged SET state = ? WHERE name = ?", (state.value, name))

    def move(self, name: str, path: bytes) -> None:
        self._execute("UPDATE staged SET path = ? WHERE name = ?", (path, name))

    def move_tree(self, old: bytes, new: bytes) -> None:
        """A directory was renamed: everything below it follows."""
        self._execute(
            "UPDATE staged SET path = CAST(? || substr(path, ?) AS BLOB) WHERE substr(path, 1, ?) = ?",
            (new + b"/", len(old) + 2, len(old) + 1, old + b"/"),
        )

    @contextmanager
    def renaming(self, rename: Renaming, wanted: bool) -> Iterator[Callable[[], None]]:
        """Around a rename; what it gives is called once the store has done it, and then rows follow.

        `wanted`: there may be some. That the end could not be written down is made good
        before the next row comes: until then, and after a crash, the store has to be asked.
        """
        done = False

        def has_done() -> None:
            nonlocal done
            done = True

        if wanted:
            self._write_down()
            self.note(rename)
        try:
            yield has_done
        finally:
            if wanted:
                self._ended(rename, done=done)

    def note(self, rename: Renaming) -> None:
        """The store is about to be told: from here on only it knows whether it was done."""
        values = (rename.old, rename.new, rename.identity, rename.exchange)
        self._execute("INSERT OR REPLACE INTO renaming VALUES (?, ?, ?, ?)", values)

    def _ended(self, rename: Renaming, *, done: bool) -> None:
        self._ends.append((rename, done))
        try:
            self._write_down()
        except StoreError as error:
            log.warning("the end of a rename is not written down yet", error=str(error))

    def _write_down(self) -> None:
        while self._ends:
            rename, done = self._ends[0]
            if done:
                self.renamed(rename)
            else:
                self.not_renamed(rename)
            del self._ends[0]

    def renamed(self, rename: Renaming) -> None:
        """It was done: rows of what was replaced are of no use, those of what was moved follow."""
        old, new = rename.old, rename.new
        self._execute("BEGIN")
        try:
            if rename.exchange:
                aside = old + b"/\0exchange"  # no name may hold a NUL, so nothing else is there
                self.move_tree(new, aside)
                self.move_tree(old, new)
                self.move_tree(new + b"/\0exchange", old)
            else:
                states = (State.GONE.value, new, State.OPEN.value, State.CLOSED.value)
                self._execute("UPDATE staged SET state = ? WHERE path = ? AND state IN (?, ?)", states)
                self._execute("UPDATE staged SET path = ? WHERE path = ?", (new, old))
                self.move_tree(old, new)
            self.not_renamed(rename)
            self._execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:  # SQLite takes it back by itself when the disk is full
                self._db.execute("ROLLBACK")
            raise

    def not_renamed(self, rename: Renaming) -> None:
        """It was not done."""
        self._execute("DELETE FROM renaming WHERE old = ? AND new = ?", (rename.old, rename.new))

    def renamings(self) -> list[Renaming]:
        """Those of which this is not known."""
        rows = self._execute("SELECT old, new, identity, exchange FROM renaming")
        return [Renaming(old, new, identity, bool(exchange)) for old, new, identity, exchange in rows]

    def remove(self, name: str) -> None:
        self._execute("DELETE FROM staged WHERE name = ?", (name,))

    def entries(self) -> list[Entry]:
        """All rows, oldest first."""
        rows = self._execute(f"SELECT {_COLUMNS} FROM staged ORDER BY created, name")
        return [_entry(row) for row in rows]

    def entry(self, name: str) -> Entry | None:
        """One row, as it is now."""
        row = self._execute(f"SELECT {_COLUMNS} FROM staged WHERE name = ?", (name,)).fetchone()
        return None if row is None else _entry(row)

    def close(self) -> None:
        self._db.close()


def _entry(row: tuple[Any, ...]) -> Entry:
    name, path, base, identity, existing, rewritten, state, showing, number, created, trace = row
    return Entry(
        name=name,
        path=path,
        base=None if base is None else Version(base),
        identity=identity,
        existing=existing,
        rewritten=bool(rewritten),
        state=State(state),
        showing=bool(showing),
        number=number,
        created=created,
        trace=trace,
    )


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """A full, read-only or failing disk says nothing about the journal; neither does a later format."""
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return str(error).startswith("damaged")
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
