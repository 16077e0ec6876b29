"""Checks of a cache directory that no daemon uses.

What a daemon does at its start (`reconcile`) would mend in silence much of what a
check is to tell. So the index is opened as it lies there, and set aside only if it
is damaged itself.

*Invariants:* `look_at` changes nothing in the directory: it works on a copy of the index.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path

from volfs.cache.check import CacheReport, Check, Look, Mend
from volfs.cache.index import Index
from volfs.cache.reconcile import is_damage
from volfs.cache.shelf import Shelf

__all__ = ["look_at", "mend_at"]


async def look_at(directory: Path) -> CacheReport:
    """Check the cache in the directory, of which nothing is changed. The caller holds its lock."""
    with tempfile.TemporaryDirectory() as aside:
        for name in ("index.db", "index.db-wal"):
            if (directory / name).exists():
                shutil.copyfile(directory / name, Path(aside, name))
        index, damage = _open(Path(aside, "index.db"))
        try:
            # What the shelf would tell the index and the disk in the end, nobody asks it to.
            shelf = Shelf(directory / "blocks", index)
            report = await Check(shelf, Look()).run()
        finally:
            index.close(clean=False)
    _note(report, damage, unmended=1)
    return report


async def mend_at(directory: Path) -> CacheReport:
    """As `look_at`, and mend what is found."""
    index, damage = _open(directory / "index.db")
    shelf = Shelf(directory / "blocks", index)
    try:
        report = await Check(shelf, Mend(shelf)).run()
        await shelf.flush()
    finally:
        shelf.close()
    _note(report, damage, unmended=0)
    return report


def _note(report: CacheReport, damage: str | None, *, unmended: int) -> None:
    if damage is not None:
        report.index_damage = damage
        report.unmended += unmended


def _open(path: Path) -> tuple[Index, str | None]:
    """The index, and what was wrong with the one that had to be set aside for a new one."""
    damage = None
    index: Index | None = None
    try:
        index = Index(path)
        damage = index.verdict()
        index.totals()
        index.load(0)  # the other table is there, too
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            if index is not None:
                index.close(clean=False)
            raise
        damage = str(error)
    if index is not None and damage is None:
        return index, None
    if index is not None:
        index.close(clean=False)
    Index.set_aside(path)
    return Index(path), damage
