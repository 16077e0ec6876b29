"""What the journal of an earlier daemon owes the store: commit what was acknowledged, keep the rest.

It runs once, before the mount serves, on rows that no node stands behind. It
deletes nothing that a row names unless its bytes are in the store.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from volfs.commit.journal import Entry, Journal, State
from volfs.commit.publish import publish
from volfs.commit.staging import Staging
from volfs.errors import NotFound, StagedLost, VolfsError
from volfs.store.base import Store

__all__ = ["Recovery", "recover"]

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Recovery:
    """Counts: committed now, kept for the user, lost, and published beside a changed file."""

    recovered: int = 0
    kept: int = 0
    lost: int = 0
    conflicts: int = 0


async def recover(store: Store, staging: Staging, journal: Journal) -> Recovery:
    """Replay the journal, oldest first (W6). A row that cannot be replayed stays for the next mount."""
    result = Recovery()
    entries = journal.entries()
    for entry in entries:
        try:
            await _replay(entry, store, staging, journal, result)
        except StagedLost as error:
            if await _already_renamed(entry, store):
                journal.remove(entry.name)
            else:
                result.lost += 1
                log.error("bytes that were staged are lost", path=entry.path, error=str(error))
                journal.remove(entry.name)
        except VolfsError as error:
            result.kept += 1
            log.warning("cannot commit what an earlier mount left; kept", path=entry.path, error=str(error))
    known = {entry.name for entry in entries}
    for name in staging.names():
        if name not in known:
            # A row is written before the first byte: without one it was committed, or is an unfinished copy.
            staging.remove(name)
    if entries:
        log.warning(
            "replayed the journal of an earlier mount",
            recovered=result.recovered,
            kept=result.kept,
            lost=result.lost,
            conflicts=result.conflicts,
        )
    return result


async def _replay(entry: Entry, store: Store, staging: Staging, journal: Journal, result: Recovery) -> None:
    staged = staging.open(entry.name)
    try:
        if entry.state is not State.CLOSED:
            result.kept += 1
            log.warning("an unfinished file of an earlier mount is kept", path=entry.path, name=entry.name)
            return
        done = await publish(store, staging, staged, entry.path, entry.base, durable=True)
        result.recovered += 1
        result.conflicts += done.conflict is not None
        journal.remove(entry.name)
        if not done.renamed:
            staging.remove(entry.name)
    finally:
        staged.close()


async def _already_renamed(entry: Entry, store: Store) -> bool:
    """Whether the crash came between the rename into the store and the removal of the row."""
    try:
        return (await store.stat(entry.path)).number == entry.number
    except NotFound:
        return False
