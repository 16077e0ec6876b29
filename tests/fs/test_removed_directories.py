"""Others remove a directory in which a file is open: however that is noticed, what is written stays."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.fs.remote import READER, Remote, remote
from volfs.errors import NotFound


async def _notice(mount: Remote, parent: int, name: str) -> None:
    with pytest.raises(NotFound):
        await mount.vfs.lookup(parent, name.encode(), READER)


@pytest.mark.parametrize("order", ["d", "e d", "f e d", "f d"])
async def test_bytes_written_after_the_removal(tmp_path: Path, order: str) -> None:
    """W7a: the removal is noticed at some of the names first; the directories are made again at the close."""
    async with remote(tmp_path, freshness_s=0.0) as mount:
        (mount.root / "d/e").mkdir(parents=True)
        (mount.root / "d/e/f").write_bytes(b"one")
        above = {"d": await mount.number(""), "e": await mount.number("d"), "f": await mount.number("d/e")}
        handle = (await mount.vfs.open(await mount.number("d/e/f"), os.O_WRONLY, READER)).handle
        shutil.rmtree(mount.root / "d")
        for name in order.split():
            await _notice(mount, above[name], name)
        await mount.vfs.write(handle, 3, b" mine")
        await mount.vfs.flush(handle)
        await mount.vfs.release(handle)
        assert (mount.root / "d/e/f").read_bytes() == b"one mine"
        assert await mount.read("d/e/f") == b"one mine"


async def test_a_directory_of_the_same_name_comes_instead(tmp_path: Path) -> None:
    """W7a: the file goes back to its place in the new directory, whose own files stay."""
    async with remote(tmp_path, freshness_s=0.0) as mount:
        (mount.root / "d").mkdir()
        (mount.root / "d/f").write_bytes(b"one")
        handle = (await mount.vfs.open(await mount.number("d/f"), os.O_WRONLY, READER)).handle
        (mount.root / "d").rename(mount.root / "old")
        shutil.rmtree(mount.root / "old")
        (mount.root / "d").mkdir()
        (mount.root / "d/g").write_bytes(b"theirs")
        await mount.number("d")
        await mount.vfs.write(handle, 3, b" mine")
        await mount.vfs.flush(handle)
        await mount.vfs.release(handle)
        assert (mount.root / "d/f").read_bytes() == b"one mine"
        assert await mount.read("d/g") == b"theirs"
