"""The directory store: the contract, both ways that it makes calls, and what only a directory can do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.store import NOBODY, StoreContract, names, staged_file
from volfs.errors import SetupError, StoreError
from volfs.store.base import Expected
from volfs.store.beneath import BENEATH_PATH_MAX, open_beneath
from volfs.store.directory import DirectoryStore


@pytest.fixture(params=[True, False], ids=["inline", "threads"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DirectoryStore]:
    """A store over an empty directory, as local (calls inline) and as remote (calls in threads)."""
    root = tmp_path / "backing"
    root.mkdir()
    opened = DirectoryStore(root, local=request.param)
    opened.open_staging("test")
    yield opened
    opened.remove_staging()
    opened.close()
    assert not (root / ".volfs").exists(), "something was left in the staging directory"


class TestContract(StoreContract):
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

    def fail(piece: memoryview) -> None:
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
