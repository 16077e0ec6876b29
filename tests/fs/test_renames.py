"""A rename is noted before the store is told, and rows follow once it was: for a crash in between (W8)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from tests.fs.remote import READER, Late, Remote, remote
from volfs.commit.journal import Renaming, State
from volfs.errors import StoreError
from volfs.fs.names import RENAME_EXCHANGE
from volfs.fs.tree import ROOT

pytestmark = pytest.mark.trio

Rows = set[tuple[bytes, State]]


async def write(mount: Remote, path: str) -> int:
    """Open for writing, and write: the file is uncommitted. The handle."""
    handle = (await mount.vfs.open(await mount.number(path), os.O_WRONLY, READER)).handle
    await mount.vfs.write(handle, 0, b"ours")
    return handle


def rows(mount: Remote) -> Rows:
    return {(entry.path, entry.state) for entry in mount.vfs.volume.journal.entries()}


CASES: dict[str, tuple[str, str, int, list[str], Rows]] = {
    "a directory": ("d", "new", 0, ["d/f"], {(b"new/f", State.OPEN)}),
    "a file": ("f", "new", 0, ["f"], {(b"new", State.OPEN)}),
    "over a file": ("f", "g", 0, ["g"], {(b"g", State.GONE)}),
    "an exchange": ("d", "e", RENAME_EXCHANGE, ["d/f", "e/g"], {(b"e/f", State.OPEN), (b"d/g", State.OPEN)}),
}


@pytest.mark.parametrize("case", CASES)
async def test_a_rename_is_noted_while_only_the_store_knows(tmp_path: Path, case: str) -> None:
    """The note stands while the store is at it; then it is gone, and every row is where its file is."""
    old, new, flags, dirty, after = CASES[case]
    async with remote(tmp_path) as mount:
        handles = await prepared(mount, dirty)
        before, identity = rows(mount), mount.store._stat(old.encode()).identity
        late = Late()
        mount.faults.plan("rename", late)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mount.vfs.rename, ROOT, old.encode(), ROOT, new.encode(), flags)
            await late.made.wait()
            noted = Renaming(old.encode(), new.encode(), identity, bool(flags))
            assert mount.vfs.volume.journal.renamings() == [noted]
            assert rows(mount) == before
            late.let.set()
        assert mount.vfs.volume.journal.renamings() == []
        assert rows(mount) == after
        await closed(mount, handles)


@pytest.mark.parametrize("case", ["a directory", "a file", "an exchange"])
async def test_a_rename_that_the_store_refuses(tmp_path: Path, case: str) -> None:
    """Nothing of it is left, and no row has moved."""
    old, new, flags, dirty, _ = CASES[case]
    async with remote(tmp_path) as mount:
        handles = await prepared(mount, dirty)
        before = rows(mount)
        mount.faults.fail("rename", 13)
        with pytest.raises(StoreError):
            await mount.vfs.rename(ROOT, old.encode(), ROOT, new.encode(), flags)
        assert mount.vfs.volume.journal.renamings() == []
        assert rows(mount) == before
        await closed(mount, handles)


async def prepared(mount: Remote, dirty: list[str]) -> list[int]:
    for name in ("d", "e"):
        (mount.root / name).mkdir()
    for name in ("f", "g", "d/f", "e/g"):
        (mount.root / name).write_bytes(b"theirs")
        await mount.number(name)
    return [await write(mount, path) for path in dirty]


async def closed(mount: Remote, handles: list[int]) -> None:
    calls: list[Callable[[int], Awaitable[None]]] = [mount.vfs.flush, mount.vfs.release]
    for handle in handles:
        for call in calls:
            await call(handle)
