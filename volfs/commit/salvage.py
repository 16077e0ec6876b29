"""What can be read of a journal that is torn or damaged.

SQLite leaves out the end of a torn write-ahead log in silence, which is right for
it and wrong for us: what it left out may be the record of somebody's bytes.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

__all__ = ["set_aside", "torn_tail"]

_HEADER: Final = 32
_FRAME_HEADER: Final = 24
_SALT: Final = 16
_SALT_OF_FRAME: Final = 8


def torn_tail(file: Path) -> bool:
    """Whether the write-ahead log of the journal ends in the middle of a frame.

    Layout: https://sqlite.org/fileformat2.html#walformat (32 bytes, then frames of 24 bytes and a page).
    """
    try:
        with Path(f"{file}-wal").open("rb") as log:
            header = log.read(_HEADER)
            size = os.fstat(log.fileno()).st_size
            if not size:
                return False
            page = int.from_bytes(header[8:12], "big")
            if len(header) < _HEADER or not page:
                return True
            whole, rest = divmod(size - _HEADER, page + _FRAME_HEADER)
            if not rest or not whole:
                return bool(rest)
            # A log that is used anew keeps the frames of its rounds before, with other salts, behind its end.
            log.seek(_HEADER + (whole - 1) * (page + _FRAME_HEADER) + _SALT_OF_FRAME)
            return log.read(8) == header[_SALT : _SALT + 8]
    except FileNotFoundError:
        return False


def set_aside(file: Path, columns: str) -> list[tuple[Any, ...]]:
    """Move a damaged journal to `NAME.damaged-TIME`; the rows that can be read of it."""
    rows = _readable(file, columns)
    aside = f"{file}.damaged-{time.time_ns()}"
    for suffix in ("-shm", "-wal", ""):
        with suppress(FileNotFoundError):
            os.rename(f"{file}{suffix}", f"{aside}{suffix}")
    return rows


def _readable(file: Path, columns: str) -> list[tuple[Any, ...]]:
    """From both ends towards the damage."""
    rows: dict[Any, tuple[Any, ...]] = {}
    for order in ("ASC", "DESC"):
        with suppress(sqlite3.DatabaseError):
            with closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as db:
                for row in db.execute(f"SELECT {columns} FROM staged ORDER BY name {order}"):
                    rows[row[0]] = row
    return list(rows.values())
