"""After a conflict: who opens by what the kernel believed before is sent to look again.

In one process and without a kernel, because there the moment before the kernel has heard of it lasts.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.notifiers import Deaf
from volfs.commit.journal import Journal
from volfs.commit.queue import CommitQueue
from volfs.commit.staging import StagedFile, Staging
from volfs.errors import VersionChanged
from volfs.fs import file
from volfs.fs.file import File
from volfs.fs.tree import Tree
from volfs.fs.vfs import Caller, Vfs
from volfs.fs.volume import Policy, Volume
from volfs.store.base import Stat
from volfs.store.directory import DirectoryStore

WRITER, READER = Caller(0, 0, 1), Caller(0, 0, 2)


@asynccontextmanager
async def mounted(tmp_path: Path) -> AsyncIterator[tuple[Vfs, Path]]:
    """A file system over a directory."""
    root = tmp_path / "backing"
    root.mkdir()
    store = DirectoryStore(root, local=True)
    journal = Journal(tmp_path / "journal.db")
    vfs: Vfs

    async def commit(number: int) -> None:
        await vfs.files.commit_number(number)

    volume = Volume(
        store=store,
        tree=Tree(await store.stat(b""), lambda node: None),
        journal=journal,
        queue=CommitQueue(commit),
        policy=Policy(
            commit_at_close=True,
            commit_interval_s=5,
            freshness_s=0,
            poll_interval_s=5,
            read_only=False,
            store_timeout_s=None,
            stale_if_error_s=0,
            durable_close=False,
            own_files=False,
        ),
        notifier=Deaf(),
        staging=Staging(store.open_staging("test"), in_store=True),
        cache=None,
    )
    vfs = Vfs(volume, dict)
    yield vfs, root
    assert journal.entries() == []
    journal.close()
    store.remove_staging()
    store.close()


async def read(vfs: Vfs, number: int) -> bytes:
    """All bytes, by an open of its own."""
    handle = (await vfs.open(number, os.O_RDONLY, READER)).handle
    try:
        return bytes(await vfs.read(handle, 0, 1000))
    finally:
        await vfs.release(handle)


async def test_an_open_by_the_old_name(tmp_path: Path) -> None:
    """R1: it is refused once, and the lookup that follows finds the others' file, not the conflict copy."""
    async with mounted(tmp_path) as (vfs, root):
        (root / "f").write_bytes(b"base")
        known = (await vfs.lookup(1, b"f", WRITER)).number
        writer = (await vfs.open(known, os.O_WRONLY | os.O_APPEND, WRITER)).handle
        await vfs.write(writer, 4, b" ours")
        (root / "n").write_bytes(b"theirs")
        (root / "n").rename(root / "f")
        await vfs.fsync(writer)

        with pytest.raises(VersionChanged):
            await vfs.open(known, os.O_RDONLY, READER)
        assert await read(vfs, (await vfs.lookup(1, b"f", READER)).number) == b"theirs"
        (beside,) = (path.name for path in root.glob("f.conflict-*"))
        assert await read(vfs, (await vfs.lookup(1, os.fsencode(beside), READER)).number) == b"base ours"
        await vfs.release(writer)


async def test_an_older_answer_takes_nothing_from_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W7a: what others put there is compared with what a handle has read; meanwhile a lookup finds a newer
    file and a program opens it. Its bytes get to the store, though the older answer comes back last.
    """

    def put(root: Path, data: bytes) -> None:
        (root / "n").write_bytes(data)
        (root / "n").rename(root / "f")

    async with mounted(tmp_path) as (vfs, root), trio.open_nursery() as nursery:
        (root / "f").write_bytes(b"base")
        old = (await vfs.open((await vfs.lookup(1, b"f", READER)).number, os.O_RDONLY, READER)).handle
        compared, go_on = trio.Event(), trio.Event()
        original = File.succeed

        async def succeed(self: File, st: Stat, path: bytes) -> bool:
            if not compared.is_set():
                compared.set()
                await go_on.wait()
            return await original(self, st, path)

        monkeypatch.setattr(File, "succeed", succeed)
        put(root, b"first")
        nursery.start_soon(vfs.lookup, 1, b"f", READER)
        await compared.wait()
        put(root, b"second")
        known = (await vfs.lookup(1, b"f", WRITER)).number
        writer = (await vfs.open(known, os.O_WRONLY | os.O_APPEND, WRITER)).handle
        go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        await vfs.write(writer, 6, b" ours")
        put(root, b"third")
        await vfs.flush(writer)
        assert (root / "f").read_bytes() == b"third"
        assert [path.read_bytes() for path in root.glob("f.conflict-*")] == [b"second ours"]
        for handle in (old, writer):
            await vfs.release(handle)


async def test_an_append_follows_a_file_that_grows_while_it_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W7: the copy of what there was begins anew with all that there is now: nothing of others is cut off."""
    async with mounted(tmp_path) as (vfs, root):
        (root / "f").write_bytes(b"base ")
        known = (await vfs.lookup(1, b"f", WRITER)).number
        writer = (await vfs.open(known, os.O_WRONLY | os.O_APPEND, WRITER)).handle
        original, grown = file.take_over, False

        async def take_over(
            self: File, staged: StagedFile, st: Stat, path: bytes | None, existing: int
        ) -> None:
            nonlocal grown
            await original(self, staged, st, path, existing)
            if not grown:
                grown = True
                (root / "n").write_bytes(b"base theirs ")
                (root / "n").rename(root / "f")
                await vfs.lookup(1, b"f", READER)

        monkeypatch.setattr(file, "take_over", take_over)
        await vfs.write(writer, 5, b"ours")
        await vfs.flush(writer)
        await vfs.release(writer)
        assert grown
        assert (root / "f").read_bytes() == b"base theirs ours"
        assert list(root.glob("f.conflict-*")) == []
