"""The journal against the staged files: which rows have no bytes, which bytes have no row.

`compare` decides, from values; `JournalCheck` looks and mends. Bytes are never
deleted: those without a row become kept files. A row without bytes is all that is
left to tell of them, so it is dropped only after it was reported.

*Concurrency:* names are listed in a thread, while the daemon goes on; so what the
comparison finds is looked at once more, in one step of the trio thread with what
is done about it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from volfs.cache.check import CacheReport
from volfs.cache.reconcile import is_damage
from volfs.commit.journal import Entry, Journal, State
from volfs.commit.staging import Staging
from volfs.store.reserved import is_of_copies

__all__ = ["Disagreement", "JournalCheck", "JournalReport", "compare", "document", "verdict"]

log = structlog.get_logger(__name__)

#: Names told one by one: a report goes through an extended attribute of 64 KiB.
_TOLD: Final = 50


@dataclass(frozen=True, slots=True)
class Disagreement:
    """`lost`: rows whose bytes are gone. `strays`: staged files that no row knows."""

    lost: list[Entry]
    strays: list[str]


def compare(entries: Iterable[Entry], names: Collection[str]) -> Disagreement:
    """Where the two disagree, beyond what a crash leaves behind and the next mount tidies up."""
    present = set(names)
    lost: list[Entry] = []
    known: set[str] = set()
    for entry in entries:
        known.add(entry.name)
        # Shown: a commit by rename takes the file away before the row. Gone: its deletion was under way.
        if entry.name not in present and not entry.showing and entry.state is not State.GONE:
            lost.append(entry)
    strays = sorted(name for name in present - known if not is_of_copies(name))
    return Disagreement(lost, strays)


@dataclass(slots=True)
class JournalReport:
    """What was found. `held`: removed, while the daemon still has the file open."""

    rows: int = 0
    files: int = 0
    kept: int = 0
    lost: list[Entry] = field(default_factory=list)
    held: list[Entry] = field(default_factory=list)
    strays: list[str] = field(default_factory=list)
    damage: str | None = None
    unmended: int = 0  # of strays and damage

    @property
    def found(self) -> int:
        return len(self.lost) + len(self.held) + len(self.strays) + (self.damage is not None)

    @property
    def remaining(self) -> int:
        """Lost bytes stay lost, whatever is done about their rows."""
        return len(self.lost) + len(self.held) + self.unmended

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "rows": self.rows,
            "files": self.files,
            "kept": self.kept,
            "lost": len(self.lost),
            "lost_files": [os.fsdecode(entry.path) or entry.name for entry in self.lost[:_TOLD]],
            "held": len(self.held),
            "held_files": [os.fsdecode(entry.path) or entry.name for entry in self.held[:_TOLD]],
            "quarantined": len(self.strays),
            "quarantined_ids": self.strays[:_TOLD],
            "damage": self.damage,
        }


class JournalCheck:
    """See the module. `in_use`: staged files that somebody has open, whose bytes need no name to be there."""

    def __init__(
        self, staging: Staging, journal: Journal, in_use: Callable[[], Collection[str]] = tuple
    ) -> None:
        self._staging = staging
        self._journal = journal
        self._in_use = in_use

    async def look(self) -> JournalReport:
        """Find what disagrees, change nothing."""
        report = JournalReport()
        names: list[str] = await trio.to_thread.run_sync(self._staging.names, abandon_on_cancel=True)
        # no await from here
        entries = self._journal.entries()
        report.rows, report.files = len(entries), len(names)
        report.kept = sum(entry.state is State.KEPT for entry in entries)
        found = compare(entries, names)
        for entry in found.lost:
            if self._is_lost(entry.name):
                (report.held if entry.name in self._in_use() else report.lost).append(entry)
        report.strays = [name for name in found.strays if self._is_stray(name)]
        report.unmended = len(report.strays)
        return report

    async def mend(self) -> JournalReport:
        """Find what disagrees: strays become kept files, rows of lost bytes are told and dropped."""
        report = await self.look()
        # no await from here
        for name in report.strays:
            number = os.stat(name, dir_fd=self._staging.directory, follow_symlinks=False).st_ino
            self._journal.add(name, b"", None, 0, number, State.KEPT)
            log.error("the journal knows nothing of a staged file; kept for `volfs recover`", name=name)
        report.kept += len(report.strays)
        report.unmended -= len(report.strays)
        for entry in report.lost:
            log.error("bytes that were staged are lost", path=entry.path, state=entry.state.value)
            self._journal.remove(entry.name)
        return report

    def _is_lost(self, name: str) -> bool:
        """Whether it is not there: the listing may be older than the row."""
        try:
            os.stat(name, dir_fd=self._staging.directory, follow_symlinks=False)
        except FileNotFoundError:
            return True
        except OSError:
            pass  # whatever hinders us says nothing about the bytes
        return False

    def _is_stray(self, name: str) -> bool:
        """Whether it has bytes: a file without any was just being made when its daemon was killed."""
        try:
            st = os.stat(name, dir_fd=self._staging.directory, follow_symlinks=False)
        except OSError:
            return False
        return st.st_size > 0 and name not in self._in_use()


def verdict(journal: Path) -> str | None:
    """What SQLite finds wrong in the journal, which others may have open; None if it is sound. Blocking.

    sqlite3.Error if it cannot be looked at, which is no damage.
    """
    try:
        with closing(sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)) as db:
            (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        return str(error)
    return None if answer == "ok" else str(answer)


def document(journal: JournalReport | None, cache: CacheReport | None) -> dict[str, Any]:
    """The report of a whole check, for JSON. Without a part: there is none of it."""
    parts = [part for part in (journal, cache) if part is not None]
    found = sum(part.found for part in parts)
    remaining = sum(part.remaining for part in parts)
    return {
        "found": found,
        "repaired": found - remaining,
        "remaining": remaining,
        "journal": None if journal is None else journal.document(),
        "cache": None if cache is None else cache.document(),
    }
