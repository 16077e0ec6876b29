"""Kept files: listed, published where they belong or elsewhere, discarded; and crashes in the middle."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.commit.conftest import Bench
from tests.mount.volume import is_staged
from volfs.commit.journal import State
from volfs.commit.kept import Kept, volume_path
from volfs.core.versions import Version
from volfs.errors import NotFound, StoreError


def kept_of(bench: Bench) -> Kept:
    """The kept files of the bench."""
    return Kept(bench.store, bench.staging, bench.journal)


def keep(bench: Bench, data: bytes, path: bytes, base: Version | None = None) -> str:
    """A kept file with these bytes; its id."""
    staged = bench.stage(data)
    bench.journal.add(staged.name, path, base, 0, staged.stat().number, State.KEPT)
    staged.close()
    return staged.name


def copies(bench: Bench) -> list[Path]:
    """Bytes under the reserved name."""
    return [path for path in (bench.root / ".volfs").rglob("*") if is_staged(path)]


async def test_the_list_says_what_there_is(bench: Bench) -> None:
    """Only kept files, oldest first, with size, path and the reason; one whose bytes are gone says so."""
    (bench.root / "f").write_bytes(b"base")
    unknown = keep(bench, b"12345", b"")
    changed = keep(bench, b"x", b"f", bench.version("f"))
    gone = keep(bench, b"y", b"g")
    bench.staging.remove(gone)
    closed = bench.stage(b"owed")
    bench.journal.add(closed.name, b"h", None, 0, 1, State.CLOSED)
    closed.close()
    files = await kept_of(bench).files()

    assert [(file.id, file.path, file.size) for file in files] == [
        (unknown, b"", 5),
        (changed, b"f", 1),
        (gone, b"g", None),
    ]
    assert [file.reason for file in files] == [
        "its record was lost",
        "being changed when the daemon ended",
        "its bytes are gone",
    ]
    assert len(kept_of(bench)) == 3


async def test_publish_where_it_belongs(bench: Bench) -> None:
    """On top of its base, into directories that are gone, and nothing of it is left here."""
    (bench.root / "f").write_bytes(b"base")
    first = keep(bench, b"ours", b"f", bench.version("f"))
    second = keep(bench, b"deep", b"a/b/g")
    kept = kept_of(bench)
    placed = [await kept.publish(first), await kept.publish(second)]

    assert [(one.path, one.conflict) for one in placed] == [(b"f", False), (b"a/b/g", False)]
    assert (bench.root / "f").read_bytes() == b"ours"
    assert (bench.root / "a/b/g").read_bytes() == b"deep"
    assert (bench.journal.entries(), bench.staging.names(), copies(bench)) == ([], [], [])


@pytest.mark.parametrize("based", [True, False], ids=["base changed", "no base"])
async def test_publish_overwrites_nothing_but_its_base(bench: Bench, based: bool) -> None:
    """W7: whatever else is there stays, ours goes beside it, and the answer says under which name."""
    (bench.root / "f").write_bytes(b"base")
    base = bench.version("f") if based else None
    (bench.root / "f").write_bytes(b"theirs, longer")
    placed = await kept_of(bench).publish(keep(bench, b"ours", b"f", base))

    assert placed.conflict
    assert placed.path.startswith(b"f.conflict-")
    assert (bench.root / "f").read_bytes() == b"theirs, longer"
    assert (bench.root / os.fsdecode(placed.path)).read_bytes() == b"ours"
    assert bench.journal.entries() == []


async def test_publish_keeps_further_names(bench: Bench) -> None:
    """W11: the file that it is new content of stays one file under all its names."""
    (bench.root / "f").write_bytes(b"base")
    os.link(bench.root / "f", bench.root / "g")
    identity = bench.store._stat(b"f").identity
    staged = bench.stage(b"ours")
    number = staged.stat().number
    bench.journal.add(staged.name, b"f", bench.version("f"), 0, number, State.KEPT, identity)
    staged.close()
    placed = await kept_of(bench).publish(staged.name)

    assert not placed.conflict
    assert (bench.root / "g").read_bytes() == b"ours"
    assert (bench.root / "f").stat().st_nlink == 2
    assert (bench.journal.entries(), bench.staging.names(), copies(bench)) == ([], [], [])


async def test_publish_elsewhere(bench: Bench) -> None:
    """`to` needs no known path; its own base counts at its own place only."""
    (bench.root / "f").write_bytes(b"base")
    (bench.root / "taken").write_bytes(b"theirs")
    base = bench.version("f")
    kept = kept_of(bench)
    free = await kept.publish(keep(bench, b"1", b""), b"new/place")
    beside = await kept.publish(keep(bench, b"2", b"f", base), b"taken")

    assert (free.path, free.conflict) == (b"new/place", False)
    assert (bench.root / "new/place").read_bytes() == b"1"
    assert beside.conflict
    assert (bench.root / "taken").read_bytes() == b"theirs"
    assert (bench.root / "f").read_bytes() == b"base"


async def test_publish_without_a_place(bench: Bench) -> None:
    """A file whose path is not known needs one, and stays what it is without."""
    id_ = keep(bench, b"x", b"")
    with pytest.raises(StoreError) as raised:
        await kept_of(bench).publish(id_)
    assert raised.value.errno == errno.EINVAL
    assert [entry.state for entry in bench.journal.entries()] == [State.KEPT]
    assert bench.staging.names() == [id_]


async def test_a_failed_publish_leaves_it_kept(bench: Bench) -> None:
    """The error is the store's, the row is what it was, and the bytes are there for the next try."""
    (bench.root / "f").write_bytes(b"a file, no directory")
    id_ = keep(bench, b"x", b"where/it/belongs")
    before = bench.journal.entry(id_)
    kept = kept_of(bench)
    with pytest.raises(StoreError) as raised:
        await kept.publish(id_, b"f/below")
    after = bench.journal.entry(id_)

    assert raised.value.errno == errno.ENOTDIR
    assert after == before
    assert copies(bench) == ([bench.root / ".volfs/me" / id_] if bench.staging.in_store else [])
    assert (await kept.publish(id_)).path == b"where/it/belongs"
    assert (bench.root / "where/it/belongs").read_bytes() == b"x"


async def test_a_crash_during_publish_is_finished_by_the_next_mount(bench: Bench) -> None:
    """From the moment of the wish the file is owed: the next daemon commits it there, over nothing."""
    (bench.root / "taken").write_bytes(b"theirs")
    names = [keep(bench, b"free", b""), keep(bench, b"beside", b"")]
    kept = kept_of(bench)
    for id_, path in zip(names, (b"free", b"taken"), strict=True):
        kept._owe(id_, path, Version(b""))
    recovery = await bench.recover()

    assert (recovery.recovered, recovery.conflicts, recovery.kept) == (2, 1, 0)
    assert (bench.root / "free").read_bytes() == b"free"
    assert (bench.root / "taken").read_bytes() == b"theirs"
    (beside,) = bench.root.glob("taken.conflict-*")
    assert beside.read_bytes() == b"beside"
    assert (bench.journal.entries(), bench.staging.names()) == ([], [])


async def test_discard(bench: Bench) -> None:
    """Bytes and row are gone, and nothing else is; a crash in between is finished by the next mount."""
    wanted, unwanted, half = keep(bench, b"w", b"w"), keep(bench, b"u", b"u"), keep(bench, b"h", b"h")
    await kept_of(bench).discard(unwanted)
    bench.journal.drop_name(half)
    await bench.recover()

    assert [entry.name for entry in bench.journal.entries()] == [wanted]
    assert bench.staging.names() == [wanted]
    assert [path.name for path in bench.root.iterdir()] == [".volfs"]


async def test_ids_are_found_by_their_beginning(bench: Bench) -> None:
    """A unique prefix will do; nothing of another state is ever found."""
    for name in ("aa1", "aa2", "b", "ba"):
        bench.journal.add(name, b"f", None, 0, 1, State.KEPT)
    bench.journal.add("c", b"f", None, 0, 1, State.CLOSED)
    kept = kept_of(bench)

    assert kept.find("aa1") == "aa1"
    assert kept.find("b") == "b"  # the whole id of one, if also the beginning of another
    for prefix, number in (("aa", errno.EINVAL), ("c", errno.ENOENT), ("x", errno.ENOENT)):
        with pytest.raises(StoreError) as raised:
            kept.find(prefix)
        assert raised.value.errno == number
    with pytest.raises(NotFound):
        await kept.publish("c", b"g")
    with pytest.raises(NotFound):
        await kept.discard("c")


async def test_open_reads_what_was_kept(bench: Bench) -> None:
    """The bytes can be looked at before anything is decided."""
    id_ = keep(bench, b"look", b"f")
    staged = await kept_of(bench).open(id_)
    assert await staged.read(0, 100) == b"look"
    staged.close()


@pytest.mark.parametrize("text", ["", "/etc/passwd", "a//b", "../x", "a/../b", "a/.", "a/", ".volfs/x"])
def test_paths_that_are_none(text: str) -> None:
    """A place is the path of a file, inside the volume, and not in what volfs keeps for itself."""
    with pytest.raises(StoreError):
        volume_path(text)


def test_paths_are_bytes() -> None:
    """Names that are no UTF-8 go the way of PEP 383, there and back."""
    assert volume_path("a/\udcff b") == b"a/\xff b"
