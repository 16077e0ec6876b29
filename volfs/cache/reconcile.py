"""Opening the index of a cache directory, and making it agree with the cache files after a crash.

It does not run while the cache is in use: all of it ends before the first read.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Final

from volfs import crash
from volfs.cache.blocks import punch
from volfs.cache.cachefile import is_sealed
from volfs.cache.index import Batch, Index, Row
from volfs.core.spans import block_count
from volfs.telemetry import get_logger

__all__ = ["SLACK_BYTES", "can_punch", "is_damage", "open_index", "path_of", "trim"]

log = get_logger(__name__)

#: Allocated beyond what the index explains: less is the file system's own, more is blocks it never heard of.
SLACK_BYTES: Final = 64 << 10

#: SQLITE_ERROR: a table or column is not there.
_DAMAGED: Final = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

#: A folder each, so that none gets too long for file systems that search names one by one.
_FOLDERS: Final = 256


def path_of(blocks: Path, id: int) -> str:  # noqa: A002 - it is the column's name
    """The cache file with this id. No `Path`: making one takes longer than anything else about a new file."""
    return f"{blocks}/{id % _FOLDERS:02x}/{id:x}"


def open_index(directory: Path) -> Index:
    """The index of the cache; an empty one where there is none or it cannot be read."""
    path = directory / "index.db"
    blocks = directory / "blocks"
    for folder in range(_FOLDERS):
        (blocks / f"{folder:02x}").mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        index = Index(path)
        try:
            if not index.clean:
                _reconcile(index, blocks)
            return index
        except BaseException:
            index.close(clean=False)
            raise
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        log.warning("the cache index is damaged; the cache starts empty", path=str(path), error=str(error))
    Index.set_aside(path)
    index = Index(path)
    try:
        _reconcile(index, blocks)
    except BaseException:
        index.close(clean=False)
        raise
    return index


def is_damage(error: sqlite3.Error) -> bool:
    """Whether it speaks of the index itself: a full, read-only or failing disk says nothing about that."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF in _DAMAGED


def _reconcile(index: Index, blocks: Path) -> None:
    """Remove files that the index does not know, rows without a file, and blocks without a row."""
    rows = {row.id: row for guests in (True, False) for row in index.oldest(guests=guests)}
    batch = Batch()
    for folder in os.scandir(blocks):
        if not folder.is_dir(follow_symlinks=False):
            continue
        for entry in os.scandir(folder.path):
            row = _row_of(rows, entry.name, blocks, entry.path)
            if row is None:
                os.unlink(entry.path)
                continue
            del rows[row.id]
            allocated = entry.stat(follow_symlinks=False).st_blocks * 512
            if allocated > row.cost + SLACK_BYTES:
                cost = None if is_sealed(entry.path) else _punch_gaps(index, row, entry.path)
                if cost is None:
                    os.unlink(entry.path)
                    batch.gone.append(row.id)
                else:
                    batch.files.append(row._replace(cost=cost))
    batch.gone.extend(rows)
    crash.point("reconcile.compared")
    if batch:
        index.apply(batch)
        log.info("reconciled the cache after a crash", dropped=len(batch.gone), trimmed=len(batch.files))


def _row_of(rows: dict[int, Row], name: str, blocks: Path, path: str) -> Row | None:
    try:
        row = rows.get(int(name, 16))
    except ValueError:
        return None
    return row if row is not None and path_of(blocks, row.id) == path else None


def _punch_gaps(index: Index, row: Row, path: str) -> int | None:
    """Free what is allocated outside the present blocks; the new cost, None if it cannot be done."""
    known = index.load(row.id)
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            trim(fd, row.size, known)
            return max(row.cost, os.fstat(fd).st_blocks * 512)
        finally:
            os.close(fd)
    except OSError:
        return None


def trim(fd: int, size: int, present: Iterable[int]) -> int:
    """Free what is allocated outside the present blocks, in ascending order; the file's mtime after."""
    # A file that grew beyond its version, by whatever accident, loses the rest first.
    os.ftruncate(fd, size)
    edges = [-1, *present, block_count(size)]
    return punch(fd, (range(a + 1, b) for a, b in pairwise(edges) if a + 1 < b))


def can_punch(directory: Path) -> bool:
    """Whether the file system can give back the space of a part of a file."""
    probe = directory / ".probe"
    try:
        fd = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, b"\1" * 8192, 0)
            punch(fd, [range(1)])
            return os.pread(fd, 1, 0) == b"\0"
        finally:
            os.close(fd)
            os.unlink(probe)
    except OSError:
        return False
