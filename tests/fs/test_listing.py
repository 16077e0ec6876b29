"""Listings over a remote store: read ahead, from memory right after one another, never from too long ago."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.fs.remote import READER, remote, until
from volfs.errors import StoreError


async def test_a_listing_right_after_another_asks_nothing(tmp_path: Path) -> None:
    """R1a: names and attributes that were asked for within the freshness are listed again from memory."""
    async with remote(tmp_path) as mount:
        mount.make("d", 300)
        first = await mount.list("d")
        mount.store.requests.clear()
        assert await mount.list("d") == first
        assert mount.store.requests.total() == 0
        await mount.vfs.unlink(await mount.number("d"), first[7][0].encode())
        assert await mount.list("d") == first[:7] + first[8:]
        handle = (await mount.vfs.create(await mount.number("d"), b"new", 0o644, os.O_WRONLY, READER))[
            1
        ].handle
        await mount.vfs.flush(handle)
        await mount.vfs.release(handle)
        assert "new" in dict(await mount.list("d"))


@pytest.mark.parametrize("operation", ["directory.names", "directory.stats"])
async def test_a_listing_that_ends_early_leaves_nothing(tmp_path: Path, operation: str) -> None:
    """B2: what was read ahead of it goes, once nobody uses its descriptor any more."""
    async with remote(tmp_path) as mount:
        mount.make("d", 500)
        number = await mount.number("d")
        open_before = len(os.listdir("/proc/self/fd"))
        mount.faults.hang(operation, nth=2, times=None)
        handle = await mount.vfs.opendir(number)
        await mount.vfs.readdir(handle, 0, lambda name, entry, after: after < 10)
        await until(lambda: mount.faults.met[operation])
        await mount.vfs.releasedir(handle)
        assert len(os.listdir("/proc/self/fd")) > open_before
        mount.faults.release()
        await until(lambda: len(os.listdir("/proc/self/fd")) == open_before)
        assert len(await mount.list("d")) == 500


async def test_an_error_in_the_middle_of_a_listing(tmp_path: Path) -> None:
    """The reader hears of it, though it was met ahead; attributes that failed are asked for again."""
    async with remote(tmp_path) as mount:
        mount.make("d", 500)
        mount.faults.fail("directory.stats", errno.EIO, nth=2)
        assert len(await mount.list("d")) == 500
        for node in mount.vfs.volume.tree.by_number.values():
            node.checked_s = -1e9
            mount.vfs.siblings.grew(node)
        mount.faults.fail("directory.names", errno.EIO, nth=2)
        with pytest.raises(StoreError):
            await mount.list("d")


async def test_a_name_that_was_looked_up_is_listed(tmp_path: Path) -> None:
    """R2: a program that found a file lists it, also if others made it a moment ago."""
    async with remote(tmp_path) as mount:
        mount.make("d", 5)
        await mount.list("d")
        (mount.root / "d" / "new").write_bytes(b"x")
        await mount.number("d/new")
        assert "new" in dict(await mount.list("d"))


async def test_a_listing_that_is_too_old_is_made_anew(tmp_path: Path) -> None:
    """R2: what others made, removed or changed is listed after the freshness."""
    async with remote(tmp_path, freshness_s=1000) as mount:
        mount.make("d", 5)
        first = await mount.list("d")
        (mount.root / "d" / first[0][0]).unlink()
        (mount.root / "d" / "new").write_bytes(b"x")
        (mount.root / "d" / first[1][0]).write_bytes(b"longer than it was before" * 100)
        for node in mount.vfs.volume.tree.by_number.values():
            node.checked_s -= 2000.0
        known = mount.vfs.siblings._listed
        for number, one in known.items():
            known[number] = one._replace(began_s=one.began_s - 2000.0)
        assert {name for name, _ in await mount.list("d")} == {"new", *dict(first[1:])}
        st = mount.vfs.volume.tree.get(first[1][1]).stat
        assert st.size == 2500
