"""One commit, and what an earlier daemon left: conflicts, names, recovery."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volfs.commit.journal import Journal
from volfs.commit.publish import conflict_name, publish
from volfs.commit.recover import recover
from volfs.commit.staging import StagedFile, Staging
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


async def test_a_changed_file_is_not_overwritten(bench: Bench) -> None:
    """W7: ours goes beside it, whole, and theirs is as it was."""
    (bench.root / "f").write_bytes(b"base")
    base = (await bench.store.stat(b"f")).version
    (bench.root / "f").write_bytes(b"theirs, longer")
    staged = bench.stage(b"ours")
    done = await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    assert (bench.root / "f").read_bytes() == b"theirs, longer"
    assert done.conflict is not None
    assert (bench.root / os.fsdecode(done.conflict)).read_bytes() == b"ours"


async def test_an_unchanged_file_is_replaced(bench: Bench) -> None:
    """The base is still there: ours is the new version."""
    (bench.root / "f").write_bytes(b"base")
    staged = bench.stage(b"ours")
    base = (await bench.store.stat(b"f")).version
    done = await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    assert done.conflict is None
    assert (bench.root / "f").read_bytes() == b"ours"


async def test_bytes_outweigh_a_delete(bench: Bench) -> None:
    """The base is gone: ours takes the name again."""
    (bench.root / "f").write_bytes(b"base")
    base = (await bench.store.stat(b"f")).version
    (bench.root / "f").unlink()
    staged = bench.stage(b"ours")
    await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    assert (bench.root / "f").read_bytes() == b"ours"


async def test_a_file_with_several_names_stays_one(bench: Bench) -> None:
    """W11: both names show the commit."""
    (bench.root / "f").write_bytes(b"base")
    os.link(bench.root / "f", bench.root / "g")
    base = (await bench.store.stat(b"f")).version
    staged = bench.stage(b"ours")
    done = await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.discard()
    assert not done.renamed
    assert (bench.root / "g").read_bytes() == b"ours"
    assert os.stat(bench.root / "f").st_nlink == 2


@given(
    name=st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name and b"\0" not in name),
    host=st.text(max_size=300),
    attempt=st.integers(0, 1000),
)
def test_conflict_names_are_names(name: bytes, host: str, attempt: int) -> None:
    """Never longer than 255 bytes, never in another directory, always telling."""
    made = conflict_name(b"d/" + name, host, 1e9, attempt)
    directory, _, last = made.rpartition(b"/")
    assert directory == b"d"
    assert len(last) <= 255
    assert b".conflict-" in last


async def test_acknowledged_bytes_are_committed_at_the_next_mount(bench: Bench) -> None:
    """W6: a closed row is replayed, an open one kept, a staged file without a row deleted."""
    closed, unfinished, orphan = bench.stage(b"closed"), bench.stage(b"open"), bench.stage(b"no row")
    for name, staged in ((b"c", closed), (b"o", unfinished)):
        bench.journal.add(staged.name, name, None, 0, staged.stat().number)
    bench.journal.close_file(closed.name)
    for staged in (closed, unfinished, orphan):
        staged.close()
    result = await recover(bench.store, bench.staging, bench.journal)
    assert (result.recovered, result.kept, result.lost) == (1, 1, 0)
    assert (bench.root / "c").read_bytes() == b"closed"
    assert not (bench.root / "o").exists()
    assert [entry.path for entry in bench.journal.entries()] == [b"o"]
    assert bench.staging.names() == [unfinished.name]


async def test_a_crash_after_the_rename_is_recognized(bench: Bench) -> None:
    """The staged file is the store's file already: the row goes, nothing is called lost."""
    staged = bench.stage(b"done")
    bench.journal.add(staged.name, b"f", None, 0, staged.stat().number)
    bench.journal.close_file(staged.name)
    # However it came there: the file at the path is the staged one.
    os.rename(staged.name, bench.root / "f", src_dir_fd=bench.staging.directory)
    staged.close()
    result = await recover(bench.store, bench.staging, bench.journal)
    assert (result.recovered, result.lost) == (0, 0)
    assert bench.journal.entries() == []
    assert (bench.root / "f").read_bytes() == b"done"


async def test_lost_bytes_are_reported(bench: Bench) -> None:
    """A staged file that vanished is counted as lost, and no empty file takes its place."""
    bench.journal.add("0" * 32, b"f", None, 0, 1)
    bench.journal.close_file("0" * 32)
    result = await recover(bench.store, bench.staging, bench.journal)
    assert result.lost == 1
    assert not (bench.root / "f").exists()
