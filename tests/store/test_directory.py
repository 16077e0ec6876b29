"""The directory store: the contract, both ways that it makes calls, and what only a directory can do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.contracts.exchanges import ExchangeContract
from tests.contracts.store import NOBODY, StoreContract, names, staged_file
from volfs.errors import SetupError, StoreError, VersionChanged
from volfs.store import directory, uploading
from volfs.store.base import Expected
from volfs.store.beneath import BENEATH_PATH_MAX, open_beneath
from volfs.store.directory import DirectoryStore


@pytest.fixture(params=["inline", "threads", "no rename flags"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DirectoryStore]:
    """A store over an empty directory: local (calls inline), remote (calls in threads), and remote on a file
    system whose rename knows no flags, as NFS is, so that uploads are shown under lock files.
    """
    root = tmp_path / "backing"
    root.mkdir()
    opened = DirectoryStore(root, local=request.param == "inline")
    opened.open_staging("test")
    if request.param == "no rename flags":
        monkeypatch.setattr(uploading, "renameat2", _no_flags)
    yield opened
    opened.remove_staging()
    opened.close()
    left = [path for path in (root / ".volfs").rglob("*") if path.is_file() and path.parent.name != "locks"]
    assert left == [], "something was left in the staging directory"


def _no_flags(*args: object) -> None:
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


class TestContract(StoreContract, ExchangeContract):
    """Every promise of a store."""


async def test_commit_by_rename_keeps_the_staged_inode(store: DirectoryStore, tmp_path: Path) -> None:
    """D9: A file that is staged in the store becomes the store's file without a copy."""
    staging = store.staging
    fd = os.open("s", os.O_RDWR | os.O_CREAT, 0o644, dir_fd=staging)
    os.write(fd, b"bytes")
    st = await (await store.upload(fd, "s", durable=True, observe=None)).show(b"f", Expected.ANYTHING)
    assert st.number == os.fstat(fd).st_ino
    assert (tmp_path / "backing/f").read_bytes() == b"bytes"
    os.close(fd)


async def test_a_failed_copy_leaves_nothing(store: DirectoryStore, tmp_path: Path) -> None:
    """The temporary file goes when the bytes cannot be copied."""
    (tmp_path / "backing/f").write_bytes(b"old")
    fd = staged_file(tmp_path, b"x" * 100)

    def fail(offset: int, piece: memoryview) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(StoreError) as raised:
        await store.upload(fd, None, durable=False, observe=fail)
    os.close(fd)
    assert raised.value.errno == 28
    assert (tmp_path / "backing/f").read_bytes() == b"old"


async def test_paths_longer_than_the_kernel_takes(store: DirectoryStore) -> None:
    """Deep trees are reached in pieces."""
    path = b""
    while len(path) <= BENEATH_PATH_MAX + 300:
        path = path + b"/" + b"d" * 200 if path else b"d" * 200
        await store.mkdir(path, 0o755, NOBODY)
    assert (await store.stat(path)).is_dir
    assert await names(store, path) == []
    while path:
        await store.rmdir(path)
        path = path.rpartition(b"/")[0]


def test_dot_dot_does_not_leave_the_tree(tmp_path: Path) -> None:
    """RESOLVE_BENEATH: not even a path that we would never build."""
    (tmp_path / "in").mkdir()
    (tmp_path / "secret").write_text("x")
    root = os.open(tmp_path / "in", os.O_PATH)
    with pytest.raises(OSError) as raised:
        open_beneath(root, b"../secret", os.O_RDONLY)
    os.close(root)
    assert raised.value.errno == 13


async def test_opening_what_is_not_a_file_does_not_hang(store: DirectoryStore, tmp_path: Path) -> None:
    """A FIFO in the place of a file is an error at once."""
    os.mkfifo(tmp_path / "backing/fifo")
    with pytest.raises(StoreError):
        await store.open(b"fifo")


def test_a_missing_backing_directory_is_said(tmp_path: Path) -> None:
    """SetupError names the directory."""
    with pytest.raises(SetupError, match=r"backing directory .*gone"):
        DirectoryStore(tmp_path / "gone")


async def test_descriptors_do_not_leak(store: DirectoryStore, tmp_path: Path) -> None:
    """Every call closes what it opens, also when it fails."""
    (tmp_path / "backing/d").mkdir()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await store.stat(b"d")
        for call in (store.stat, store.open, store.readlink, store.unlink):
            with pytest.raises(StoreError):
                await call(b"d/no")
        with pytest.raises(StoreError):
            await store.open(b"d")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_a_commit_waits_for_another_mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W7: without an exchange, look and rename are one step among mounts: who comes second sees the first."""
    monkeypatch.setattr(uploading, "renameat2", _no_flags)
    (tmp_path / "f").write_bytes(b"base")
    store = DirectoryStore(tmp_path, local=False)
    store.open_staging("me")
    base = (await store.stat(b"f")).version
    fd = staged_file(tmp_path, b"ours")
    upload = await store.upload(fd, None, durable=False, observe=None)
    refused = trio.Event()

    async def show() -> None:
        with pytest.raises(VersionChanged):
            await upload.show(b"f", base)
        refused.set()

    async with trio.open_nursery() as nursery:
        root = os.open(tmp_path, os.O_PATH)
        with uploading._Lock(root, b"f"):  # another mount is in the middle of its commit
            nursery.start_soon(show)
            with trio.fail_after(10):
                while not _is_awaited(tmp_path / ".volfs/locks"):
                    await trio.sleep(0.005)
            (tmp_path / "f").write_bytes(b"theirs")
        os.close(root)
    assert refused.is_set()
    await upload.discard()
    assert (tmp_path / "f").read_bytes() == b"theirs"
    os.close(fd)
    store.remove_staging()
    store.close()


def _is_awaited(locks: Path) -> bool:
    """Whether somebody waits for the only lock file there."""
    (file,) = locks.iterdir()
    number = f":{file.stat().st_ino} "
    return any("->" in line and number in line for line in Path("/proc/locks").read_text().splitlines())


async def test_a_mount_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W6b: again and again, so that no other node takes it for gone."""
    monkeypatch.setattr(directory, "HEARTBEAT_S", 0.01)
    store = DirectoryStore(tmp_path, local=True)
    store.open_staging("me")
    owner = tmp_path / ".volfs/owners/me"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.live)
        for _ in range(3):
            os.utime(owner, (0, 0))
            with trio.fail_after(10):
                while owner.stat().st_mtime == 0:
                    await trio.sleep(0.001)
        nursery.cancel_scope.cancel()
    store.remove_staging()
    store.close()


async def test_a_file_that_changes_under_a_fetch_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: bytes that are of no one version never leave the store."""
    (tmp_path / "f").write_bytes(b"old")
    store = DirectoryStore(tmp_path)
    read = os.pread

    def overtaken(fd: int, size: int, offset: int) -> bytes:
        (tmp_path / "f").write_bytes(b"new")
        os.utime(tmp_path / "f", ns=(1, 1))
        return read(fd, size, offset)

    monkeypatch.setattr(os, "pread", overtaken)
    with pytest.raises(VersionChanged):
        await store.fetch(b"f", 10)
    store.close()
