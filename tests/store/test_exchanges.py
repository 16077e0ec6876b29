"""Copies in the middle of an exchange: their names, their traces, and what becomes of another's version."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.contracts.exchanges import interrupted
from tests.contracts.store import staged_file
from volfs.core.versions import Version
from volfs.errors import StoreError, StoreTimeout
from volfs.store import copies
from volfs.store.base import Expected, Upload
from volfs.store.directory import DirectoryStore
from volfs.store.exchanges import Trace


@pytest.fixture(params=[True, False], ids=["inline", "threads"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DirectoryStore]:
    """A store over a directory with a file `d/f`."""
    (tmp_path / "backing/d").mkdir(parents=True)
    (tmp_path / "backing/d/f").write_bytes(b"base")
    opened = DirectoryStore(tmp_path / "backing", local=request.param)
    opened.open_staging("me")
    yield opened
    opened.close()


@pytest.fixture
def backing(tmp_path: Path, store: DirectoryStore) -> Path:
    """The directory beneath."""
    return tmp_path / "backing"


def replace(file: Path, data: bytes) -> None:
    """Others make a new version."""
    (file.parent / "fresh").write_bytes(data)
    (file.parent / "fresh").rename(file)


def in_staging(backing: Path) -> list[str]:
    """Names of the files in the staging directory and its lanes."""
    return sorted(path.name for path in (backing / ".volfs/me").rglob("*") if path.is_file())


async def brought(store: DirectoryStore, tmp_path: Path, data: bytes, *, replaces: bool) -> Upload:
    """A copy without a name."""
    fd = staged_file(tmp_path, data)
    try:
        return await store.upload(fd, None, durable=True, observe=None, replaces=replaces)
    finally:
        os.close(fd)


@given(
    name=st.text("abcdef0123456789-/", min_size=1),
    number=st.integers(0, 2**64 - 1),
    version=st.text("abcdef0123456789.", min_size=1),
)
def test_a_trace_is_read_as_it_was_written(name: str, number: int, version: str) -> None:
    """Names of copies and versions of a directory have no spaces."""
    trace = Trace(name, number, Version(version.encode()))
    assert Trace.parse(trace.text()) == trace


async def test_only_what_may_be_exchanged_is_called_so(
    store: DirectoryStore, backing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6b: what any node may sweep is never exchanged; what is large is not called so before it must be."""
    monkeypatch.setattr(copies, "PIECE_BYTES", 5)
    for data, replaces, prefix in (
        (b"new", False, "copy-"),
        (b"small", True, "swap-"),
        (b"large!", True, "copy-"),
    ):
        base = (await store.stat(b"d/f")).version
        upload = await brought(store, tmp_path, data, replaces=replaces)
        (name,) = in_staging(backing)
        assert name.startswith(prefix)
        seen: list[list[str]] = []
        with monkeypatch.context() as patch:
            patch.setattr("volfs.crash.point", lambda point, seen=seen: seen.append(in_staging(backing)))
            await upload.show(b"d/f", base)
        assert {name[:5] for names in seen for name in names} == {"swap-"}
        descriptor = upload.descriptor()
        assert descriptor is not None
        os.close(descriptor)
        assert (backing / "d/f").read_bytes() == data
        assert in_staging(backing) == []


async def test_what_is_left_is_kept_where_there_still_is_a_directory(
    store: DirectoryStore, backing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W7e: others removed the file and its directory meanwhile; a delete does not outweigh bytes."""
    base = (await store.stat(b"d/f")).version
    replace(backing / "d/f", b"theirs")
    trace = await interrupted(store, tmp_path, monkeypatch, b"d/f", base)
    assert trace is not None
    (backing / "d/f").unlink()
    (backing / "d").rmdir()
    kept_as = await store.keep_left(trace, b"d/f")
    assert kept_as is not None
    assert kept_as.startswith(b"f.conflict-")
    assert (backing / os.fsdecode(kept_as)).read_bytes() == b"theirs"
    assert in_staging(backing) == []


async def test_a_show_that_failed_in_the_middle_gives_back_what_is_not_ours(
    store: DirectoryStore, backing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W7e: the store's error came after the exchange: a copy that is discarded is looked at first."""
    base = (await store.stat(b"d/f")).version
    for theirs in (b"theirs", None):
        if theirs is not None:
            replace(backing / "d/f", theirs)
        else:
            base = (await store.stat(b"d/f")).version
        upload = await brought(store, tmp_path, b"ours", replaces=True)

        def point(name: str) -> None:
            if name == "show.exchanged":
                raise OSError("the store fails")

        with monkeypatch.context() as patch:
            patch.setattr("volfs.crash.point", point)
            with pytest.raises(StoreError):
                await upload.show(b"d/f", base)
        await upload.discard()
        await upload.discard()
        assert (backing / "d/f").read_bytes() == b"ours"
        assert [path.read_bytes() for path in (backing / "d").glob("f.conflict-*")] == [b"theirs"]
        assert in_staging(backing) == []


async def test_a_copy_that_is_being_shown_is_not_discarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W7e: the daemon ends while the store hangs; the call that was left may exchange in the next moment."""
    (tmp_path / "backing").mkdir()
    file = tmp_path / "backing/f"
    file.write_bytes(b"base")
    store = DirectoryStore(tmp_path / "backing", local=False)
    store.open_staging("me")
    base = (await store.stat(b"f")).version
    upload = await brought(store, tmp_path, b"ours", replaces=True)
    reached, go_on = threading.Event(), threading.Event()

    def point(name: str) -> None:
        if name == "show.exchanged":
            reached.set()
            assert go_on.wait(10)

    monkeypatch.setattr("volfs.crash.point", point)
    replace(file, b"theirs")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(upload.show, b"f", base)
        await trio.to_thread.run_sync(reached.wait, 10)
        nursery.cancel_scope.cancel()
    with pytest.raises(StoreTimeout):
        await upload.discard()
    assert in_staging(tmp_path / "backing") != []
    go_on.set()
    while True:
        try:
            await upload.discard()
        except StoreTimeout:
            await trio.lowlevel.checkpoint()
        else:
            break
    assert file.read_bytes() == b"theirs"
    assert in_staging(tmp_path / "backing") == []
    store.close()


async def test_a_rename_brings_nothing_out(store: DirectoryStore, tmp_path: Path) -> None:
    """A staged file in the store has its row's own number; a new name has nothing that could come out."""
    fd = staged_file(tmp_path, b"x")
    renamed = await store.upload(fd, "name", durable=False, observe=None)
    os.close(fd)
    copied = await brought(store, tmp_path, b"new", replaces=False)
    assert renamed.trace(Version(b"v")) == ""
    assert [copied.trace(Expected.NOTHING), copied.trace(Expected.ANYTHING)] == ["", ""]
    await copied.discard()
