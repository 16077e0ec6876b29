"""Fetching ahead across files: no call when a file is opened, and never a byte that an open must not see."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from tests.fs.remote import READER, Late, Remote, remote, until
from tests.store.fault_plan import Call
from volfs.core.order import FIRST_WINDOW, MOST_WINDOW
from volfs.errors import StoreError
from volfs.fs import siblings
from volfs.fs.tree import ROOT

T = TypeVar("T")
Listing = list[tuple[str, int]]

ORDERS: dict[str, Callable[[Listing], Listing]] = {
    "listing": lambda entries: entries,
    "inode numbers": lambda entries: sorted(entries, key=lambda entry: entry[1]),
    "names": sorted,
}


async def idle(mount: Remote) -> None:
    """Wait until nothing is fetched any more."""
    await until(lambda: not mount.vfs.siblings._fetches and not mount.vfs.siblings._queue)


@pytest.mark.parametrize("order", ORDERS)
async def test_files_are_fetched_before_they_are_opened(tmp_path: Path, order: str) -> None:
    """R7: in the order of the listing, the inode numbers or the names: one call a file, before its open."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 60)
        names = [name for name, _ in ORDERS[order](await mount.list("d"))]
        for name in names[:3]:
            assert await mount.read(f"d/{name}") == files[name]
        await idle(mount)
        mount.calls()
        for name in names[3 : 3 + FIRST_WINDOW]:
            await mount.vfs.lookup(await mount.number("d"), name.encode(), READER)
        assert mount.calls() == {}
        for name in names[3:]:
            assert await mount.read(f"d/{name}") == files[name]
        assert mount.calls() == {"fetch": 60 - 3 - FIRST_WINDOW}


async def test_the_order_of_one_directory_is_presumed_in_the_next(tmp_path: Path) -> None:
    """R7: a tree of small directories is fetched from the first open on."""
    async with remote(tmp_path) as mount:
        mount.make("a", 20)
        files = mount.make("b", 5)
        for name in sorted(name for name, _ in await mount.list("a")):
            await mount.read(f"a/{name}")
        names = sorted(name for name, _ in await mount.list("b"))
        await idle(mount)
        mount.calls()
        await mount.read(f"b/{names[0]}")
        await idle(mount)
        assert mount.calls() == {"fetch": 5}
        for name in names[1:]:
            assert await mount.read(f"b/{name}") == files[name]
        assert mount.calls() == {}


async def test_an_open_waits_for_the_fetch_under_way(tmp_path: Path) -> None:
    """R7: one read at the store, whoever comes meanwhile."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 10)
        names = [name for name, _ in await mount.list("d")]
        mount.faults.hang("fetch", where=lambda path: path == f"d/{names[3]}".encode(), times=None)
        for name in names[:3]:
            await mount.read(f"d/{name}")
        await until(lambda: f"d/{names[3]}".encode() in mount.vfs.siblings._fetches)
        got: list[bytes] = []

        async def read() -> None:
            got.append(await mount.read(f"d/{names[3]}"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked(0.05)
            assert got == []
            mount.faults.release()
        assert got == [files[names[3]]] * 5
        await idle(mount)
        assert mount.calls()["fetch"] == len(set(names))


async def test_a_change_by_others_is_seen_by_the_next_open(tmp_path: Path) -> None:
    """R1: also if the file was fetched ahead before, in place or by another file, where each open asks."""
    async with remote(tmp_path, freshness_s=0) as mount:
        mount.make("d", 20)
        names = [name for name, _ in await mount.list("d")]
        for name in names[:5]:
            await mount.read(f"d/{name}")
        await idle(mount)
        (mount.root / "d" / names[5]).write_bytes(b"in place")
        (mount.root / "d" / "new").write_bytes(b"another")
        (mount.root / "d" / "new").rename(mount.root / "d" / names[6])
        (mount.root / "d" / names[7]).unlink()
        assert await mount.read(f"d/{names[5]}") == b"in place"
        assert await mount.read(f"d/{names[6]}") == b"another"
        with pytest.raises(StoreError) as raised:
            await mount.read(f"d/{names[7]}")
        assert raised.value.errno == errno.ENOENT


async def test_what_is_written_here_is_read_here(tmp_path: Path) -> None:
    """W1: bytes that were fetched ahead do not outlive our own change."""
    async with remote(tmp_path) as mount:
        mount.make("d", 20)
        names = [name for name, _ in await mount.list("d")]
        for name in names[:3]:
            await mount.read(f"d/{name}")
        await idle(mount)
        handle = (await mount.vfs.open(await mount.number(f"d/{names[3]}"), os.O_WRONLY, READER)).handle
        await mount.vfs.write(handle, 0, b"ours")
        assert (await mount.read(f"d/{names[3]}"))[:4] == b"ours"
        await mount.vfs.flush(handle)
        await mount.vfs.release(handle)
        assert (await mount.read(f"d/{names[3]}"))[:4] == b"ours"


@pytest.mark.parametrize("change", ["unlink", "rename", "write"])
async def test_our_change_outlives_an_older_answer(tmp_path: Path, change: str) -> None:
    """W1: what the store said before we changed a file is not believed after."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 20)
        names = [name for name, _ in await mount.list("d")]
        ahead = names[3]
        late = Late()
        mount.faults.plan("fetch", late, where=lambda path: path == f"d/{ahead}".encode())
        for name in names[:3]:
            await mount.read(f"d/{name}")
        await late.made.wait()
        number = await mount.number("d")
        if change == "unlink":
            await mount.vfs.unlink(number, ahead.encode())
        elif change == "rename":
            await mount.vfs.rename(number, names[19].encode(), number, ahead.encode(), 0)
        else:
            handle = (await mount.vfs.open(await mount.number(f"d/{ahead}"), os.O_WRONLY, READER)).handle
            await mount.vfs.write(handle, 0, b"ours")
            await mount.vfs.flush(handle)
            await mount.vfs.release(handle)
        late.let.set()
        await idle(mount)
        if change == "unlink":
            with pytest.raises(StoreError):
                await mount.read(f"d/{ahead}")
        elif change == "rename":
            assert await mount.read(f"d/{ahead}") == files[names[19]]
        else:
            assert (await mount.read(f"d/{ahead}"))[:4] == b"ours"


async def test_an_error_ahead_is_nobodys(tmp_path: Path) -> None:
    """R7: the open meets it itself, or does not."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 20)
        names = [name for name, _ in await mount.list("d")]
        mount.faults.fail("fetch", errno.EIO, times=None)
        for name in names:
            assert await mount.read(f"d/{name}") == files[name]
        assert mount.vfs.volume.errors == 0


async def test_a_torn_fetch_is_no_file(tmp_path: Path) -> None:
    """R3: fewer bytes than the version has are never read."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 20)
        names = [name for name, _ in await mount.list("d")]
        mount.faults.tear("fetch", times=None)
        for name in names:
            assert await mount.read(f"d/{name}") == files[name]


async def test_what_may_change_unseen_is_not_kept(tmp_path: Path) -> None:
    """R1: a file that was written a moment ago is fetched ahead, believed for the freshness, and not kept."""
    async with remote(tmp_path) as mount:
        mount.vfs.volume.store.granularity_ns = 10**18
        files = mount.make("d", 20)
        names = [name for name, _ in await mount.list("d")]
        for name in names:
            assert await mount.read(f"d/{name}") == files[name]
        await idle(mount)
        st = mount.vfs.volume.tree.get(await mount.number(f"d/{names[10]}")).stat
        assert not mount.cache.complete({st.version: st.size})
        assert mount.cache.used_bytes == 0


async def test_files_of_which_the_cache_has_all_are_only_asked_about(tmp_path: Path) -> None:
    """R5: a second pass costs attributes, ahead of the opens."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 30)
        names = [name for name, _ in await mount.list("d")]
        for name in names:
            await mount.read(f"d/{name}")
        await until(lambda: not len(mount.cache.wholes))
        for node in mount.vfs.volume.tree.by_number.values():
            node.checked_s -= 2000.0
        mount.calls()
        for name in names:
            assert await mount.read(f"d/{name}") == files[name]
        counts = mount.calls()
        assert set(counts) == {"stat"}
        assert counts["stat"] <= len(names) + 5


async def test_large_files_are_left_to_their_own_window(tmp_path: Path) -> None:
    """R7: beyond 4 MiB, readahead in the file is worth more."""
    async with remote(tmp_path) as mount:
        mount.make("d", 10)
        for path in (mount.root / "d").iterdir():
            os.truncate(path, siblings.WHOLE_BYTES + 1)
        for name, _ in await mount.list("d"):
            await mount.read(f"d/{name}")
        assert "fetch" not in mount.calls()


async def test_memory_bounds_what_is_fetched_ahead(tmp_path: Path) -> None:
    """B2: with little memory the reader waits, and gets all the same what it reads."""
    async with remote(tmp_path, memory_bytes=1 << 20) as mount:
        files = mount.make("d", 40, size=200_000)
        most = 0
        for name, _ in await mount.list("d"):
            assert await mount.read(f"d/{name}") == files[name]
            most = max(most, mount.held_bytes)
        assert most <= 1 << 20
        await idle(mount)


async def test_two_readers_at_once(tmp_path: Path) -> None:
    """R7: workers that take turns find their files fetched."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 100)
        names = sorted(name for name, _ in await mount.list("d"))

        async def read(some: list[str]) -> None:
            for name in some:
                assert await mount.read(f"d/{name}") == files[name]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(read, names[::2])
            nursery.start_soon(read, names[1::2])
        assert mount.calls()["fetch"] == 100


# -- hints -----------------------------------------------------------------------


async def hint(mount: Remote, directory: str, paths: list[str]) -> None:
    """As setxattr(2) brings it."""
    value = b"\0".join(map(os.fsencode, paths))
    await mount.vfs.setxattr(await mount.number(directory), b"user.volfs.prefetch", value, READER)


@pytest.mark.parametrize("base", ["", "d"])
async def test_a_hint_is_followed(tmp_path: Path, base: str) -> None:
    """R7a: a shuffled order that was said is fetched like any other, from before the first open, unlisted."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 60)
        order = [f"d/{name}" for name in files]
        random.Random(1).shuffle(order)
        said = [path.removeprefix(f"{base}/") if base else path for path in order]
        await hint(mount, base, said[:30])
        await hint(mount, base, said[30:])
        await until(lambda: len(mount.cache.wholes) >= 4)
        mount.calls()
        for path in order:
            assert await mount.read(path) == files[path.removeprefix("d/")]
        await idle(mount)
        assert mount.store.requests["fetch"] <= 60
        assert "open" not in mount.calls()


async def test_what_was_fetched_ahead_is_handed_out(tmp_path: Path) -> None:
    """R6a: at the first request, from the disk, with no call to the store; its memory is free then."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 6)
        await hint(mount, "d", list(files))
        await idle(mount)
        assert len(mount.cache.wholes) == len(files)
        mount.calls()
        for name, content in files.items():
            local = await mount.vfs.getxattr(await mount.number(f"d/{name}"), b"user.volfs.path", READER)
            assert Path(os.fsdecode(local)).read_bytes() == content
        assert mount.calls() == {} and len(mount.cache.wholes) == 0


async def test_a_hint_of_what_is_not_there(tmp_path: Path) -> None:
    """R7a: names that lead nowhere, up, or to a directory are ignored, and so is the empty one."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 3)
        (name, *_) = files
        await hint(
            mount,
            "",
            [
                "no",
                "no/no",
                "d",
                "../x",
                "/d",
                "",
                ".volfs/owners/test",
                f"d//{name}",
                f"d/{name}/x",
                f"d/{name}",
            ],
        )
        await until(lambda: len(mount.cache.wholes) == 1)
        await idle(mount)
        assert mount.vfs.volume.errors == 0


async def test_hints_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R7a: EAGAIN until some of the paths were opened; on a file it is ENOTDIR."""
    monkeypatch.setattr(siblings, "HINTED", 10)
    async with remote(tmp_path) as mount:
        files = mount.make("d", 1)
        await hint(mount, "", [str(i) for i in range(10)])
        with pytest.raises(StoreError) as raised:
            await hint(mount, "", ["x"])
        assert raised.value.errno == errno.EAGAIN
        with pytest.raises(StoreError) as raised:
            await hint(mount, f"d/{next(iter(files))}", ["x"])
        assert raised.value.errno == errno.ENOTDIR


async def test_a_hint_is_fetched_in_a_window(tmp_path: Path) -> None:
    """B2: not all at once."""
    async with remote(tmp_path) as mount:
        files = mount.make("d", 300)
        await hint(mount, "d", list(files))
        await idle(mount)
        assert 0 < len(mount.cache.wholes) <= MOST_WINDOW


# -- what is known, and for how long ---------------------------------------------------


async def test_ages_do_not_add_up(tmp_path: Path) -> None:
    """R1a: the kernel may believe what it is told for what is left of the freshness."""
    async with remote(tmp_path, freshness_s=100.0) as mount:
        mount.make("d", 1)
        ((name, number),) = await mount.list("d")
        directory = await mount.number("d")
        node = mount.vfs.volume.tree.get(number)
        mount.calls()
        node.checked_s = trio.current_time() - 60.0
        for entry in (
            await mount.vfs.lookup(directory, name.encode(), READER),
            await mount.vfs.getattr(number),
        ):
            assert 39.0 < entry.timeout_s <= 40.0
        assert mount.calls() == {}
        node.checked_s = trio.current_time() - 101.0
        assert (await mount.vfs.lookup(directory, name.encode(), READER)).timeout_s > 99.0
        assert mount.calls() == {"stat": 1}


async def test_an_answer_is_as_old_as_its_question(tmp_path: Path) -> None:
    """R1a: a store that takes a while to answer says what was when it was asked."""
    async with remote(tmp_path, freshness_s=100.0) as mount:
        mount.make("d", 1)
        (name,) = os.listdir(mount.root / "d")
        directory = await mount.number("d")

        class Slow:
            async def around(self, call: Call[object]) -> object:
                await trio.sleep(0.3)
                return await call.whole()

        mount.faults.plan("stat", Slow())
        assert (await mount.vfs.lookup(directory, name.encode(), READER)).timeout_s <= 99.7


async def test_one_of_several_names_is_always_asked_for(tmp_path: Path) -> None:
    """R1a: that one name of a file was asked for says nothing of the other."""
    async with remote(tmp_path) as mount:
        (mount.root / "a").write_bytes(b"x")
        os.link(mount.root / "a", mount.root / "b")
        await mount.vfs.lookup(ROOT, b"a", READER)
        await mount.vfs.lookup(ROOT, b"b", READER)
        mount.calls()
        await mount.vfs.lookup(ROOT, b"b", READER)
        assert mount.calls() == {"stat": 1}
        (mount.root / "b").unlink()
        with pytest.raises(StoreError):
            await mount.vfs.lookup(ROOT, b"b", READER)
