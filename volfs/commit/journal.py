"""The journal: what is staged, since which base version, in which state. SQLite, one row a staged file.

It does not hold bytes, and it does not decide what a row means after a crash
(`recover` does).

*Invariants:* a row exists before the first byte of its staged file is written,
and is deleted only after the commit was done or the file has no name left to
commit to. `path` follows renames, of the file and of directories above it.

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
from dataclasses import dataclass
from pathlib import Path

from volfs.core.versions import Version
from volfs.errors import StoreError

__all__ = ["Entry", "Journal", "State"]

_FORMAT = 1

_SCHEMA = """
-- One staged file. The table is the record of what this mount owes the store.
CREATE TABLE staged (
    name     TEXT PRIMARY KEY,  -- of the file in the staging directory
    path     BLOB NOT NULL,     -- where it belongs in the volume, as of the last rename
    base     BLOB,              -- version that it was made from; NULL: it replaces whatever is there
    existing INTEGER NOT NULL,  -- bytes taken over from the base: an append starts there
    state    TEXT NOT NULL,     -- 'open': not acknowledged; 'closed': acknowledged, must be committed
    number   INTEGER NOT NULL,  -- inode of the staged file: how a rename into the store is recognized
    created  REAL NOT NULL      -- seconds since the epoch
) WITHOUT ROWID;
"""


class State(enum.Enum):
    """How far an entry is acknowledged to the application."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Entry:
    """A row. `created` in seconds since the epoch, `existing` in bytes."""

    name: str
    path: bytes
    base: Version | None
    existing: int
    state: State
    number: int
    created: float


class Journal:
    """The table, and the ways that it changes. StoreError: ENOSPC if the local disk is full, else EIO."""

    def __init__(self, file: Path) -> None:
        self._db = sqlite3.connect(file, isolation_level=None)
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=OFF")
        (found,) = self._db.execute("PRAGMA user_version").fetchone()
        if found == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version={_FORMAT}; COMMIT;")
        elif found != _FORMAT:
            raise sqlite3.DatabaseError(f"journal format {found}, this volfs knows {_FORMAT}")

    def _execute(self, statement: str, values: tuple[object, ...] = ()) -> sqlite3.Cursor:
        try:
            return self._db.execute(statement, values)
        except sqlite3.Error as error:
            full = error.sqlite_errorcode == sqlite3.SQLITE_FULL
            raise StoreError(
                f"the journal cannot be written: {error}; free space where the cache directory is",
                errno=errno.ENOSPC if full else errno.EIO,
            ) from error

    def add(self, name: str, path: bytes, base: Version | None, existing: int, number: int) -> None:
        self._execute(
            "INSERT INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)",
            (name, path, base, existing, State.OPEN.value, number, time.time()),
        )

    def rebase(self, name: str, base: Version | None) -> None:
        """Our own change of attributes or name gave the base a new version."""
        self._execute("UPDATE staged SET base = ? WHERE name = ?", (base, name))

    def close_file(self, name: str) -> None:
        """The application was told that its bytes are safe."""
        self._execute("UPDATE staged SET state = ? WHERE name = ?", (State.CLOSED.value, name))

    def move(self, name: str, path: bytes) -> None:
        self._execute("UPDATE staged SET path = ? WHERE name = ?", (path, name))

    def move_tree(self, old: bytes, new: bytes) -> None:
        """A directory was renamed: everything below it follows."""
        self._execute(
            "UPDATE staged SET path = CAST(? || substr(path, ?) AS BLOB) WHERE substr(path, 1, ?) = ?",
            (new + b"/", len(old) + 2, len(old) + 1, old + b"/"),
        )

    def remove(self, name: str) -> None:
        self._execute("DELETE FROM staged WHERE name = ?", (name,))

    def entries(self) -> list[Entry]:
        """All rows, oldest first."""
        rows = self._execute(
            "SELECT name, path, base, existing, state, number, created FROM staged ORDER BY created, name"
        )
        return [
            Entry(
                name, path, None if base is None else Version(base), existing, State(state), number, created
            )
            for name, path, base, existing, state, number, created in rows
        ]

    def close(self) -> None:
        self._db.close()
