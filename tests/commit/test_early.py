"""Copies that begin while their file is being written: what a commit, or nobody, makes of them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.mount.volume import eventually
from tests.store.faults import FaultStore
from volfs.commit.checksums import BlockSums
from volfs.commit.early import EarlyCopy
from volfs.commit.publish import Commit
from volfs.commit.staging import StagedFile, Staging
from volfs.core import ahead
from volfs.core.ahead import Parts
from volfs.errors import StoreError
from volfs.store.directory import DirectoryStore

#: A part, so that a test moves little.
P = 1 << 20


class Place:
    """A store over a network, staged files outside of it, and one file that is being written."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "backing"
        self.root.mkdir()
        (directory / "staging").mkdir()
        self.beneath = DirectoryStore(self.root, local=False)
        self.beneath.open_staging("me")
        self.store = FaultStore(self.beneath)
        self.staging = Staging(os.open(directory / "staging", os.O_RDONLY), in_store=False)
        self.staged: StagedFile = self.staging.create()
        self.parts = Parts()
        self.moved = 0
        self.early = EarlyCopy(self.store, self.staging, self.staged, self.parts, self._moved)

    def _moved(self) -> None:
        self.moved += 1

    def write(self, offset: int, data: bytes) -> None:
        """As an open file does."""
        self.parts.changing(offset, len(data))
        os.pwrite(self.staged.fd, data, offset)
        self.parts.wrote(offset, len(data))
        self.early.poke()

    def bytes(self) -> bytes:
        """What the staged file has."""
        return os.pread(self.staged.fd, self.staged.size + 1, 0)

    def copies(self) -> list[str]:
        """Copies in the store that have no name."""
        return [path.name for path in (self.root / ".volfs/me").rglob("copy-*")]

    async def commit(self) -> list[int] | None:
        """Publish it as `f`; its checksums."""
        commit = Commit(self.store, self.staging, self.staged, checksums=True, early=self.early)
        try:
            await commit.bring(durable=True)
            done = await commit.show(b"f", None)
        finally:
            await commit.give_up()
        assert done.descriptor is not None
        os.close(done.descriptor)
        return done.sums


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Nothing is left of it but what was committed."""
    monkeypatch.setattr(ahead, "PART_BYTES", P)
    before = len(os.listdir("/proc/self/fd"))
    made = Place(tmp_path)
    yield made
    assert made.copies() == []
    made.staged.discard()
    os.close(made.staging.directory)
    made.beneath.remove_staging()
    made.beneath.close()
    assert not (made.root / ".volfs").exists()
    # What a thread was told to close goes when it comes to it.
    eventually(lambda: len(os.listdir("/proc/self/fd")) == before, 5, "no descriptor is left")


async def until(place: Place, written: int) -> None:
    """Until so much has arrived in the store."""
    with trio.fail_after(20):
        while place.store.written_bytes < written:
            await trio.sleep(0.001)


async def test_a_commit_copies_the_rest_only(place: Place) -> None:
    """W3b: what was written in sequence is in the store before its end, once, with the right checksums."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.early.run)
        place.write(0, os.urandom(3 * P + 1000))
        await until(place, 3 * P)
        place.write(3 * P + 1000, os.urandom(P))
        await until(place, 4 * P)
        sums = await place.commit()
    content = place.bytes()
    assert (place.root / "f").read_bytes() == content
    assert place.store.written_bytes == len(content)
    expected = BlockSums()
    expected.update(0, memoryview(content))
    assert sums == expected.finish(len(content))
    assert place.moved > 0


async def test_what_changed_meanwhile_is_copied_again(place: Place) -> None:
    """W3b: a header that is written last is what the store gets."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.early.run)
        place.write(0, os.urandom(4 * P))
        await until(place, 4 * P)
        place.write(10, b"header")
        place.write(4 * P, b"tail")
        sums = await place.commit()
    assert (place.root / "f").read_bytes() == place.bytes()
    assert place.store.written_bytes == 5 * P + 4
    expected = BlockSums()
    expected.update(0, memoryview(place.bytes()))
    assert sums == expected.finish(4 * P + 4)


@pytest.mark.parametrize("size", [0, 5, P, 2 * P + 5])
async def test_a_file_that_was_cut_has_its_size(place: Place, size: int) -> None:
    """W3b: nothing of what was brought stays behind its end."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.early.run)
        place.write(0, os.urandom(3 * P))
        await until(place, 3 * P)
        os.ftruncate(place.staged.fd, size)
        place.parts.cut(size)
        await place.commit()
    assert (place.root / "f").read_bytes() == place.bytes()


async def test_attributes_are_those_of_the_end(place: Place) -> None:
    """W9: mode and times that are set while the copy is under way."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.early.run)
        place.write(0, os.urandom(2 * P))
        await until(place, 2 * P)
        os.fchmod(place.staged.fd, 0o640)
        os.utime(place.staged.fd, ns=(1_000_000_007, 2_000_000_009))
        await place.commit()
    st = (place.root / "f").stat()
    assert (st.st_mode & 0o7777, st.st_mtime_ns) == (0o640, 2_000_000_009)


@pytest.mark.parametrize("operation", ["begin", "transfer.bring"])
async def test_a_store_that_fails_meanwhile_is_no_matter(place: Place, operation: str) -> None:
    """The copy is dropped, and the commit makes one of its own; nobody hears of the error."""
    place.store.faults.fail(operation, errno.ENOSPC)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.early.run)
        place.write(0, os.urandom(2 * P + 1))
        await trio.testing.wait_all_tasks_blocked(0.05)
        await place.commit()
    assert place.store.faults.met == {operation: 1}
    assert (place.root / "f").read_bytes() == place.bytes()


@pytest.mark.parametrize("operation", ["transfer.bring", "transfer.finish"])
async def test_a_commit_that_fails_starts_again(place: Place, operation: str) -> None:
    """W4: its error is the store's, nothing is left in the store, and the next attempt copies all."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.early.run)
        place.write(0, os.urandom(2 * P + 1))
        await until(place, 2 * P)
        place.store.faults.fail(operation, errno.EDQUOT)
        with pytest.raises(StoreError) as raised:
            await place.commit()
    assert raised.value.errno == errno.EDQUOT
    assert place.copies() == []
    await place.commit()
    assert (place.root / "f").read_bytes() == place.bytes()


@pytest.mark.parametrize("when", ["before it began", "while it waits", "while it copies"])
async def test_what_nobody_wants_goes(place: Place, when: str) -> None:
    """The file was removed: its copy is taken away, the descriptors too."""
    async with trio.open_nursery() as nursery:
        if when == "while it copies":
            place.store.faults.delay("transfer.bring", 0.2)
        if when != "before it began":
            nursery.start_soon(place.early.run)
        place.write(0, os.urandom(2 * P))
        if when == "while it waits":
            await until(place, 2 * P)
        elif when == "while it copies":
            with trio.fail_after(20):
                while not place.store.faults.met:
                    await trio.sleep(0.001)
        place.early.drop()
        if when == "before it began":
            nursery.start_soon(place.early.run)
    assert place.copies() == []
    assert not (place.root / "f").exists()


async def test_a_copy_that_cannot_be_taken_away_is_owed(place: Place) -> None:
    """The next commit takes it away."""
    place.store.faults.fail("transfer.discard", errno.EIO)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(place.early.run)
        place.write(0, os.urandom(2 * P))
        await until(place, 2 * P)
        place.early.drop()
    assert len(place.copies()) == 1
    assert len(place.staging.owed) == 1
    place.early = EarlyCopy(place.store, place.staging, place.staged, Parts(), lambda: None)
    place.early.drop()
    await place.early.run()
    await place.commit()
    assert place.copies() == []
