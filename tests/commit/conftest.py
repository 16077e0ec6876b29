"""A store, a place for staged files and a journal, in both kinds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from volfs.commit.journal import Journal
from volfs.commit.recover import Recovery
from volfs.commit.staging import StagedFile, Staging
from volfs.core.versions import Version
from volfs.store.directory import DirectoryStore


@dataclass
class Bench:
    """A store with a place for staged files and a journal."""

    root: Path
    store: DirectoryStore
    staging: Staging
    journal: Journal

    def stage(self, data: bytes) -> StagedFile:
        """A staged file with these bytes."""
        staged = self.staging.create()
        os.write(staged.fd, data)
        return staged

    def left(
        self,
        path: bytes,
        data: bytes,
        base: Version | None = None,
        existing: int = 0,
        identity: bytes | None = None,
    ) -> str:
        """As `stage`, with a row, and closed: what a killed daemon leaves of an open file. Its name."""
        staged = self.stage(data)
        number = staged.stat().number
        self.journal.add(staged.name, path, base, existing, number, identity=identity)
        staged.close()
        return staged.name

    async def recover(self) -> Recovery:
        """What the next daemon makes of it."""
        recovery = Recovery(self.store, self.staging, self.journal)
        await recovery.start()
        return recovery

    def version(self, path: str) -> Version:
        """What the store has there now."""
        return self.store._stat(os.fsencode(path)).version


@pytest.fixture(params=[True, False], ids=["rename", "copy"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Staged files in the store (a commit is a rename) and outside of it (a commit is a copy)."""
    root = tmp_path / "backing"
    root.mkdir()
    store = DirectoryStore(root)
    directory = store.open_staging("me")
    if not request.param:
        (tmp_path / "staging").mkdir()
        directory = os.open(tmp_path / "staging", os.O_RDONLY)
    journal = Journal(tmp_path / "journal")
    yield Bench(root, store, Staging(directory, in_store=request.param), journal)
    journal.close()
    if not request.param:
        os.close(directory)
    store.close()
