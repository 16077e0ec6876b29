"""What this mount did itself is seen at once, also in attributes that only the store knows (W1, R1a)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from tests.fs.remote import READER, Late, Remote, remote
from volfs.fs.tree import ROOT

pytestmark = pytest.mark.trio


async def put(mount: Remote, number: int, offset: int, data: bytes) -> None:
    """Write, and close. The kernel knows the file by its number, and does not look it up again."""
    handle = (await mount.vfs.open(number, os.O_WRONLY, READER)).handle
    await mount.vfs.write(handle, offset, data)
    await mount.vfs.flush(handle)
    await mount.vfs.release(handle)


@pytest.mark.parametrize("how", ["unlink", "rename"])
async def test_a_name_taken_away_is_no_conflict(tmp_path: Path, how: str) -> None:
    """W7: a file with two names has another ctime once we took one away. That others changed it is not so."""
    async with remote(tmp_path) as mount:
        (mount.root / "a").write_bytes(b"theirs")
        os.link(mount.root / "a", mount.root / "b")
        (mount.root / "c").write_bytes(b"c")
        number, *_ = [await mount.number(name) for name in "abc"]
        await mount.read("a")  # what the cache has needs no look at the store when it is opened
        if how == "unlink":
            await mount.vfs.unlink(ROOT, b"b")
        else:
            await mount.vfs.rename(ROOT, b"c", ROOT, b"b", 0)
        await put(mount, number, 6, b" and ours")
        assert (mount.root / "a").read_bytes() == b"theirs and ours"
        assert not list(mount.root.glob("*.conflict-*"))


@pytest.mark.parametrize("change", ["mkdir", "symlink", "link", "unlink", "rmdir", "rename", "write"])
async def test_a_directory_has_the_time_of_our_change(tmp_path: Path, change: str) -> None:
    """W1: the time of a directory in which we made, moved or removed a name is the store's, and not older."""
    async with remote(tmp_path) as mount:
        mount.make("d", 2)
        (mount.root / "d" / "e").mkdir()
        os.utime(mount.root / "d", ns=(1, 1))
        first, second = (name.encode() for name, _ in await mount.list("d") if name != "e")
        directory = await mount.number("d")
        file = await mount.number(f"d/{first.decode()}")
        await mount.number("d/e")
        assert (await mount.vfs.getattr(directory)).stat.mtime_ns == 1
        if change == "mkdir":
            await mount.vfs.mkdir(directory, b"f", 0o755, READER)
        elif change == "symlink":
            await mount.vfs.symlink(directory, b"f", b"x", READER)
        elif change == "link":
            await mount.vfs.link(file, directory, b"f")
        elif change == "unlink":
            await mount.vfs.unlink(directory, second)
        elif change == "rmdir":
            await mount.vfs.rmdir(directory, b"e")
        elif change == "rename":
            await mount.vfs.rename(directory, first, directory, b"f", 0)
        else:
            await put(mount, file, 0, b"x")
        now_ns = (mount.root / "d").stat().st_mtime_ns
        assert (await mount.vfs.getattr(directory)).stat.mtime_ns == now_ns > 1


async def test_a_new_file_gives_its_directory_a_time(tmp_path: Path) -> None:
    """W1: while it is not committed, the time of its creation; then the store's."""
    async with remote(tmp_path) as mount:
        (mount.root / "d").mkdir()
        directory = await mount.number("d")
        before_ns = (await mount.vfs.getattr(directory)).stat.mtime_ns
        _, opened = await mount.vfs.create(directory, b"f", 0o644, os.O_WRONLY, READER)
        assert (await mount.vfs.getattr(directory)).stat.mtime_ns > before_ns
        await mount.vfs.flush(opened.handle)
        await mount.vfs.release(opened.handle)
        now_ns = (mount.root / "d").stat().st_mtime_ns
        assert (await mount.vfs.getattr(directory)).stat.mtime_ns == now_ns


async def test_what_is_staged_outlives_the_only_name_that_we_know(tmp_path: Path) -> None:
    """W7, W11: others gave the file a second name while we wrote, so that it is another version; we take the
    first name away. Had we believed what we knew, our bytes would have gone with it.
    """
    async with remote(tmp_path) as mount:
        (mount.root / "a").write_bytes(b"theirs")
        number = await mount.number("a")
        handle = (await mount.vfs.open(number, os.O_WRONLY, READER)).handle
        await mount.vfs.write(handle, 6, b" and ours")
        os.link(mount.root / "a", mount.root / "b")
        await mount.vfs.unlink(ROOT, b"a")
        await mount.vfs.flush(handle)
        await mount.vfs.release(handle)
        (beside,) = mount.root.glob("a.conflict-*")
        assert beside.read_bytes() == b"theirs and ours"
        assert (mount.root / "b").read_bytes() == b"theirs"


@pytest.mark.parametrize("made", ["exclusive", "before"])
async def test_what_replaces_a_file_is_committed_first(tmp_path: Path, made: str) -> None:
    """W6: a crash right after the rename finds the new bytes, and not an empty or old file in their place."""
    async with remote(tmp_path) as mount:
        (mount.root / "good").write_bytes(b"a good version")
        await mount.number("good")
        if made == "exclusive":
            flags = os.O_WRONLY | os.O_EXCL
            node, opened = await mount.vfs.create(ROOT, b"new", 0o644, flags, READER)
            number, handle = node.number, opened.handle
        else:
            (mount.root / "new").write_bytes(b"old")
            number = await mount.number("new")
            handle = (await mount.vfs.open(number, os.O_WRONLY, READER)).handle
        await mount.vfs.write(handle, 0, b"the new bytes")
        await mount.vfs.rename(ROOT, b"new", ROOT, b"good", 0)
        assert (mount.root / "good").read_bytes() == b"the new bytes"
        await mount.vfs.flush(handle)
        await mount.vfs.release(handle)


@pytest.mark.parametrize("made", ["file", "directory"])
async def test_what_is_found_before_we_hear_that_we_made_it(tmp_path: Path, made: str) -> None:
    """W1: who looks meanwhile (a fetch ahead, say) finds the same object, and not one that is gone."""
    async with remote(tmp_path) as mount:
        late = Late()
        mount.faults.plan("mknod" if made == "file" else "mkdir", late)
        numbers: list[int] = []

        async def make() -> None:
            if made == "file":
                node, opened = await mount.vfs.create(ROOT, b"new", 0o644, os.O_WRONLY | os.O_EXCL, READER)
                await mount.vfs.write(opened.handle, 0, b"ours")
                await mount.vfs.flush(opened.handle)
                await mount.vfs.release(opened.handle)
            else:
                node = await mount.vfs.mkdir(ROOT, b"new", 0o755, READER)
            numbers.append(node.number)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make)
            await late.made.wait()
            found = await mount.number("new")
            if made == "file":
                await put(mount, found, 0, b"their bytes")
            late.let.set()
        assert numbers == [found]
        assert [path.name for path in mount.root.iterdir() if path.name != ".volfs"] == ["new"]
        if made == "file":
            assert (mount.root / "new").read_bytes() == b"oursr bytes"
