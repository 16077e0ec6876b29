"""What an earlier daemon left, and what the next one makes of it."""

from __future__ import annotations

import errno
import os
import shutil

import pytest
import trio

from tests.commit.conftest import Bench
from volfs.commit.journal import State
from volfs.commit.recover import Recovery
from volfs.errors import StoreError
from volfs.store.base import Stat


def refuse(bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let the store refuse so many looks."""
    original = bench.store.stat

    async def stat(path: bytes) -> Stat:
        nonlocal times
        if times:
            times -= 1
            raise StoreError("refused", errno=errno.EACCES)
        return await original(path)

    monkeypatch.setattr(bench.store, "stat", stat)


async def test_acknowledged_bytes_are_committed_at_the_next_mount(bench: Bench) -> None:
    """W6: a closed row is replayed, an open one kept."""
    closed, unfinished = bench.left(b"c", b"closed"), bench.left(b"o", b"open")
    bench.journal.close_file(closed)
    result = await bench.recover()
    assert (result.recovered, result.kept, result.lost, result.waiting) == (1, 1, 0, 0)
    assert (bench.root / "c").read_bytes() == b"closed"
    assert not (bench.root / "o").exists()
    assert [(entry.path, entry.state) for entry in bench.journal.entries()] == [(b"o", State.KEPT)]
    assert bench.staging.names() == [unfinished]


async def test_a_file_without_a_row_is_kept(bench: Bench) -> None:
    """Its row was lost: nobody knows its path, and its bytes are not deleted. An empty one is."""
    stray, empty = bench.stage(b"bytes"), bench.stage(b"")
    stray.close()
    empty.close()
    result = await bench.recover()
    assert (result.kept, result.lost) == (1, 0)
    assert bench.staging.names() == [stray.name]
    assert [(e.name, e.path, e.state) for e in bench.journal.entries()] == [(stray.name, b"", State.KEPT)]


async def test_an_unfinished_append_is_committed(bench: Bench) -> None:
    """W6: its base with more at the end cannot spoil a good version."""
    (bench.root / "log").write_bytes(b"one\n")
    bench.left(b"log", b"one\ntwo\n", bench.version("log"), existing=4)
    result = await bench.recover()
    assert (result.recovered, result.kept) == (1, 0)
    assert (bench.root / "log").read_bytes() == b"one\ntwo\n"
    assert bench.journal.entries() == []


async def test_an_unfinished_append_to_a_changed_file_is_kept(bench: Bench) -> None:
    """Nobody was promised anything: theirs stays, no conflict copy is made."""
    (bench.root / "log").write_bytes(b"one\n")
    bench.left(b"log", b"one\ntwo\n", bench.version("log"), existing=4)
    (bench.root / "log").write_bytes(b"other\n")
    result = await bench.recover()
    assert (result.recovered, result.kept, result.conflicts) == (0, 1, 0)
    assert [name for name in os.listdir(bench.root) if name != ".volfs"] == ["log"]
    assert (bench.root / "log").read_bytes() == b"other\n"


async def test_an_unfinished_change_is_kept(bench: Bench) -> None:
    """Something below the end was rewritten: half of a change is not published over a good version."""
    (bench.root / "f").write_bytes(b"good")
    name = bench.left(b"f", b"baad+", bench.version("f"), existing=4)
    bench.journal.rewrote(name)
    result = await bench.recover()
    assert (result.recovered, result.kept) == (0, 1)
    assert (bench.root / "f").read_bytes() == b"good"


async def test_a_file_without_a_name_goes(bench: Bench) -> None:
    """It was unlinked while it was open: with its last handle, the daemon, it is gone."""
    name = bench.left(b"tmp", b"scratch")
    bench.journal.drop_name(name)
    result = await bench.recover()
    assert (result.recovered, result.kept, result.lost) == (0, 0, 0)
    assert bench.staging.names() == []
    assert bench.journal.entries() == []


async def test_a_crash_after_the_rename_is_recognized(bench: Bench) -> None:
    """The staged file is the store's file already, or others replaced it since: nothing is called lost."""
    staged = bench.left(b"f", b"done")
    bench.journal.close_file(staged)
    bench.journal.showing(staged)
    os.rename(staged, bench.root / "f", src_dir_fd=bench.staging.directory)
    result = await bench.recover()
    assert (result.recovered, result.lost, result.conflicts) == (1, 0, 0)
    assert bench.journal.entries() == []
    assert (bench.root / "f").read_bytes() == b"done"


async def test_a_crash_after_the_copy_got_its_name_is_recognized(bench: Bench) -> None:
    """W7b: the store has these very bytes: no second commit, no conflict with ourselves."""
    (bench.root / "f").write_bytes(b"base")
    staged = bench.left(b"f", b"done", bench.version("f"), existing=4)
    bench.journal.close_file(staged)
    bench.journal.showing(staged)
    shutil.copy(f"/proc/self/fd/{bench.staging.directory}/{staged}", bench.root / "copy")
    (bench.root / "copy").rename(bench.root / "f")
    if bench.staging.in_store:
        bench.staging.remove(staged)
    result = await bench.recover()
    assert (result.recovered, result.lost, result.conflicts) == (1, 0, 0)
    assert sorted(name for name in os.listdir(bench.root) if name != ".volfs") == ["f"]
    assert bench.staging.names() == []


@pytest.mark.parametrize("bench", [True], indirect=True, ids=["rename"])
async def test_a_crash_in_the_middle_of_an_exchange(bench: Bench) -> None:
    """Ours has the name, and what had it lies in the staging directory: it is not published again."""
    (bench.root / "f").write_bytes(b"base")
    staged = bench.left(b"f", b"ours", bench.version("f"), existing=4)
    bench.journal.close_file(staged)
    bench.journal.showing(staged)
    aside = bench.root / "aside"
    (bench.root / "f").rename(aside)
    os.rename(staged, bench.root / "f", src_dir_fd=bench.staging.directory)
    os.rename(aside, staged, dst_dir_fd=bench.staging.directory)
    result = await bench.recover()
    assert (result.recovered, result.lost, result.conflicts) == (1, 0, 0)
    assert (bench.root / "f").read_bytes() == b"ours"
    assert bench.staging.names() == []
    assert bench.journal.entries() == []


async def test_a_torn_overwrite_is_done_again(bench: Bench) -> None:
    """W11: a file with two names was being written in place. What is there is neither; ours is whole."""
    (bench.root / "f").write_bytes(b"base base")
    os.link(bench.root / "f", bench.root / "g")
    st = bench.store._stat(b"f")
    staged = bench.left(b"f", b"ours ours", st.version, existing=9, identity=st.identity)
    bench.journal.close_file(staged)
    bench.journal.showing(staged)
    with (bench.root / "f").open("r+b") as file:
        file.write(b"ours")
    result = await bench.recover()
    assert (result.recovered, result.conflicts) == (1, 0)
    assert (bench.root / "g").read_bytes() == b"ours ours"


async def test_lost_bytes_are_reported(bench: Bench) -> None:
    """W6a: A staged file that vanished is counted as lost, and no empty file takes its place."""
    bench.journal.add("0" * 32, b"f", None, 0, 1)
    bench.journal.close_file("0" * 32)
    result = await bench.recover()
    assert result.lost == 1
    assert not (bench.root / "f").exists()


async def test_bytes_outweigh_removed_directories(bench: Bench) -> None:
    """W7: the directories above are made again."""
    name = bench.left(b"a/b/f", b"bytes")
    bench.journal.close_file(name)
    result = await bench.recover()
    assert (result.recovered, result.waiting) == (1, 0)
    assert (bench.root / "a/b/f").read_bytes() == b"bytes"


async def test_what_fails_is_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """A store that refuses at the start gets its bytes later, where they belong by then."""
    name = bench.left(b"d/f", b"bytes")
    bench.journal.close_file(name)
    (bench.root / "d").mkdir()
    refuse(bench, monkeypatch, 3)
    result = Recovery(bench.store, bench.staging, bench.journal)
    await result.start()
    assert (result.recovered, result.waiting) == (0, 1)
    assert "refused" in (result.last_error or "")
    bench.journal.move_tree(b"d", b"e")
    (bench.root / "d").rename(bench.root / "e")
    await result.run()
    assert (result.recovered, result.waiting) == (1, 0)
    assert (bench.root / "e/f").read_bytes() == b"bytes"
    assert bench.journal.entries() == []


async def test_an_append_that_was_still_being_taken_over_is_nothing(bench: Bench) -> None:
    """Killed between the row and the last copied byte of the base: the base stays, whole."""
    (bench.root / "log").write_bytes(b"0123456789")
    version = bench.version("log")
    for data in (b"", b"0123", b"0123456789"):
        bench.left(b"log", data, version, existing=10)
    result = await bench.recover()
    assert (result.recovered, result.kept, result.lost) == (0, 0, 0)
    assert (bench.root / "log").read_bytes() == b"0123456789"
    assert bench.staging.names() == []
    assert bench.journal.entries() == []


async def test_what_came_meanwhile_is_not_replaced(bench: Bench) -> None:
    """W7d: an emptied or new file replaces what is there; after a crash nobody knows what came first."""
    (bench.root / "f").write_bytes(b"known")
    known = bench.store._stat(b"f")
    rewritten = bench.left(b"f", b"rewritten", identity=known.identity)
    created = bench.left(b"g", b"created")
    for name in (rewritten, created):
        bench.journal.close_file(name)
    for name in ("f", "g"):
        (bench.root / "fresh").write_bytes(b"theirs")
        (bench.root / "fresh").rename(bench.root / name)
    result = await bench.recover()
    assert (result.recovered, result.conflicts) == (2, 2)
    held = {path.name: path.read_bytes() for path in bench.root.iterdir() if path.is_file()}
    assert (held.pop("f"), held.pop("g")) == (b"theirs", b"theirs")
    assert sorted(held.values()) == [b"created", b"rewritten"]


async def test_an_emptied_file_replaces_what_it_was(bench: Bench) -> None:
    """The usual case: the object is the one that was emptied."""
    (bench.root / "f").write_bytes(b"known")
    name = bench.left(b"f", b"rewritten", identity=bench.store._stat(b"f").identity)
    bench.journal.close_file(name)
    result = await bench.recover()
    assert (result.recovered, result.conflicts) == (1, 0)
    assert (bench.root / "f").read_bytes() == b"rewritten"


async def test_an_unfinished_commit_in_place_is_finished(bench: Bench) -> None:
    """W11: fsync had not returned, but the file with two names was half written: it is made whole again."""
    (bench.root / "f").write_bytes(b"base base")
    os.link(bench.root / "f", bench.root / "g")
    identity = bench.store._stat(b"f").identity
    name = bench.left(b"f", b"ours ours ours", identity=identity)
    bench.journal.showing(name)
    with (bench.root / "f").open("r+b") as file:
        file.write(b"ours")
    result = await bench.recover()
    assert (result.recovered, result.kept, result.conflicts) == (1, 0, 0)
    assert (bench.root / "g").read_bytes() == b"ours ours ours"


async def test_an_unfinished_file_that_cannot_be_judged_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """W6: an append, too, is tried again, and what was settled meanwhile ends the waiting."""
    (bench.root / "log").write_bytes(b"one")
    bench.left(b"log", b"one two", bench.version("log"), existing=3)
    refuse(bench, monkeypatch, 2)
    recovery = Recovery(bench.store, bench.staging, bench.journal)
    await recovery.start()
    assert (recovery.waiting, recovery.recovered) == (1, 0)
    await recovery.run()
    assert (recovery.waiting, recovery.recovered, recovery.kept) == (0, 1, 0)
    assert (bench.root / "log").read_bytes() == b"one two"
