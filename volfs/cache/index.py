"""The index: which blocks of which versions are present, with their checksums. SQLite.

It is the truth about every cache file that nobody uses; for one in use, memory
is (`CacheFile`), and the index follows in batches. It touches no cache file.

*Concurrency:* reads come from the trio thread, on a connection of their own;
`apply` is called from one thread at a time. WAL lets them overlap. Rows must
survive `kill -9`, which the page cache does without an fsync. `synchronous` is
NORMAL, not OFF: that adds an fsync at each WAL checkpoint, in the writing
thread, where no request waits; without it a power cut could leave a damaged
file that is noticed only by luck. Rows that a power cut loses cost a fetch; rows
whose blocks it lost do not pass the checksum.

*Invariants:* a row in `block` is written after the block's bytes and deleted
before them. An id is never used twice while its file exists.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from volfs.core.versions import Version

__all__ = ["GUEST", "Batch", "Index", "Row"]

_APPLICATION: Final = 0x766F6C63  # "volc", in the header of the file
_FORMAT: Final = 2  # blocks of 32 KiB; format 1 had 256

#: `used` of a guest is less by so much: one index has both queues in their order, and guests come first.
GUEST: Final = 1 << 62

_SCHEMA: Final = f"""
-- One cache file: the bytes of one version of one file.
CREATE TABLE file (
    id      INTEGER PRIMARY KEY,  -- also its name in blocks/
    version BLOB NOT NULL,
    size    INTEGER NOT NULL,     -- of the version, in bytes
    used    INTEGER NOT NULL,     -- bytes read of all files until its last use; a guest's less 2^62
    cost    INTEGER NOT NULL      -- bytes that its blocks take on the disk
);
CREATE INDEX file_version ON file (version);
CREATE INDEX file_used ON file (used);
-- One block that is present. `sum` is xxh3_64 of its bytes, as a signed integer.
CREATE TABLE block (
    file   INTEGER NOT NULL,
    number INTEGER NOT NULL,
    sum    INTEGER NOT NULL,
    PRIMARY KEY (file, number)
) WITHOUT ROWID;
-- One row: whether the last daemon closed the cache, so that nothing needs to be reconciled. A new index
-- has not seen what lies in blocks/.
CREATE TABLE state (clean INTEGER NOT NULL);
INSERT INTO state VALUES (0);
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORMAT};
"""


class Row(NamedTuple):
    """A row of `file`."""

    id: int
    version: Version
    size: int
    used: int
    cost: int

    @property
    def is_guest(self) -> bool:
        return self.used < 0

    @property
    def clock(self) -> int:
        """Bytes that had been read of all files at its last use."""
        return self.used + GUEST if self.used < 0 else self.used


@dataclass(slots=True)
class Batch:
    """Changes for one transaction, made in the order of the fields."""

    gone: list[int] = field(default_factory=list)  # ids of files without a trace
    emptied: list[int] = field(default_factory=list)  # ids of files whose blocks are written anew below
    lost: list[tuple[int, int]] = field(default_factory=list)  # id, block
    files: list[Row] = field(default_factory=list)
    blocks: list[tuple[int, int, int]] = field(default_factory=list)  # id, block, sum

    def __bool__(self) -> bool:
        return bool(self.gone or self.emptied or self.lost or self.files or self.blocks)


def _signed(number: int) -> int:
    """SQLite's integers are signed 64-bit ones."""
    return number - (1 << 64) if number >> 63 else number


class Index:
    """See the module. Every method may raise sqlite3.Error: the index is then to be done without."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writer = self._connect()
        try:
            self._prepare()
            self._reader = self._connect()
        except BaseException:
            self._writer.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        # A second daemon is kept out by the lock on the directory, so nobody holds a lock for long.
        connection = sqlite3.connect(self._path, timeout=5, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection

    def _prepare(self) -> None:
        writer = self._writer
        (application,) = writer.execute("PRAGMA application_id").fetchone()
        (version,) = writer.execute("PRAGMA user_version").fetchone()
        if (application, version) == (0, 0) and not self._tables():
            writer.execute("PRAGMA journal_mode = WAL")
            writer.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
        elif (application, version) != (_APPLICATION, _FORMAT):
            raise sqlite3.DatabaseError(f"another format: {application:#x} {version}")
        (clean,) = writer.execute("SELECT clean FROM state").fetchone()
        self.clean = bool(clean)
        if not self.clean:
            (verdict,) = writer.execute("PRAGMA quick_check(1)").fetchone()
            if verdict != "ok":
                raise sqlite3.DatabaseError(verdict)
        writer.execute("UPDATE state SET clean = 0")

    def _tables(self) -> int:
        (count,) = self._writer.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()
        return int(count)

    @staticmethod
    def set_aside(path: Path) -> None:
        """Move a file that is no index out of the way; the one moved before it is lost."""
        for suffix in ("-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        if path.exists():
            os.replace(path, f"{path}.damaged")

    def totals(self) -> tuple[int, int, int, int]:
        """Largest id, latest use, the bytes that all cache files take, and what guests take of them."""
        query = f"""
            SELECT MAX(id), MAX(used + {GUEST} * (used < 0)), SUM(cost), SUM(cost * (used < 0)) FROM file
        """
        row = self._reader.execute(query).fetchone()
        return row[0] or 0, row[1] or 0, row[2] or 0, row[3] or 0

    def find(self, version: Version) -> list[Row]:
        """The cache files of a version, the latest first."""
        query = "SELECT id, version, size, used, cost FROM file WHERE version = ? ORDER BY id DESC"
        return [Row(*row) for row in self._reader.execute(query, (version,))]

    def oldest(self, *, guests: bool) -> Generator[Row]:
        """A queue, the one used longest ago first. Close the iterator before the next await."""
        sign = "<" if guests else ">="
        query = f"SELECT id, version, size, used, cost FROM file WHERE used {sign} 0 ORDER BY used, id"
        cursor = self._reader.execute(query)
        try:
            for row in cursor:
                yield Row(*row)
        finally:
            cursor.close()

    def extents(self, versions: Sequence[Version]) -> dict[Version, tuple[int, int]]:
        """Size and number of present blocks of those of the versions that are known; the most, if twice."""
        marks = ",".join("?" * len(versions))
        query = f"""
            SELECT version, size, (SELECT COUNT(*) FROM block WHERE block.file = file.id) AS present
            FROM file WHERE version IN ({marks}) ORDER BY present
        """
        return {Version(v): (size, present) for v, size, present in self._reader.execute(query, versions)}

    def following(self, id: int) -> Row | None:  # noqa: A002 - it is the column's name
        """The file with the next larger id."""
        query = "SELECT id, version, size, used, cost FROM file WHERE id > ? ORDER BY id LIMIT 1"
        row = self._reader.execute(query, (id,)).fetchone()
        return None if row is None else Row(*row)

    def has(self, id: int) -> bool:  # noqa: A002
        """Whether there is a row of the file."""
        return self._reader.execute("SELECT 1 FROM file WHERE id = ?", (id,)).fetchone() is not None

    def verdict(self) -> str | None:
        """What SQLite finds wrong in the whole index, None if it is sound. From any thread."""
        connection = self._connect()
        try:
            (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        finally:
            connection.close()
        return None if answer == "ok" else str(answer)

    def count(self, id: int) -> int:  # noqa: A002
        """How many blocks of a file are present."""
        (count,) = self._reader.execute("SELECT COUNT(*) FROM block WHERE file = ?", (id,)).fetchone()
        return int(count)

    def load(self, id: int) -> dict[int, int]:  # noqa: A002
        """The blocks of a file that are present, ascending, and their checksums."""
        return self._load(self._reader, id)

    def load_in_thread(self, id: int) -> dict[int, int]:  # noqa: A002
        """As `load`, from any thread."""
        connection = self._connect()
        try:
            return self._load(connection, id)
        finally:
            connection.close()

    @staticmethod
    def _load(connection: sqlite3.Connection, id: int) -> dict[int, int]:  # noqa: A002
        rows = connection.execute("SELECT number, sum FROM block WHERE file = ? ORDER BY number", (id,))
        return {number: sum_ & 0xFFFF_FFFF_FFFF_FFFF for number, sum_ in rows}

    def apply(self, batch: Batch) -> None:
        """Make all changes, or none."""
        writer = self._writer
        writer.execute("BEGIN IMMEDIATE")
        try:
            gone = [(id_,) for id_ in batch.gone]
            writer.executemany("DELETE FROM file WHERE id = ?", gone)
            writer.executemany("DELETE FROM block WHERE file = ?", gone)
            writer.executemany("DELETE FROM block WHERE file = ?", [(id_,) for id_ in batch.emptied])
            writer.executemany("DELETE FROM block WHERE file = ? AND number = ?", batch.lost)
            writer.executemany("INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?, ?)", batch.files)
            writer.executemany(
                "INSERT OR REPLACE INTO block VALUES (?, ?, ?)",
                [(id_, number, _signed(sum_)) for id_, number, sum_ in batch.blocks],
            )
            writer.execute("COMMIT")
        except BaseException:
            if writer.in_transaction:
                writer.execute("ROLLBACK")
            raise

    def close(self, *, clean: bool) -> None:
        """`clean`: index and cache files agree."""
        try:
            if clean:
                self._writer.execute("UPDATE state SET clean = 1")
        finally:
            self._reader.close()
            self._writer.close()
