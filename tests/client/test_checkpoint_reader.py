"""VolumeReader in one process: what it checks before it reads, in which order it reads, and whom it names."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as torch_save
from volfs_client import (
    CheckpointDamaged,
    CheckpointFailed,
    CheckpointMissing,
    UCVolumeReader,
    VolumeReader,
    VolumeWriter,
)
from volfs_client.checkpoint import files, load, reader, save

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def state(value: float = 1.0) -> dict[str, Any]:
    return {**{f"t{i}": torch.full((100,), value * i) for i in range(12)}, "step": int(value)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    save(state(), storage_writer=VolumeWriter(tmp_path / "ck", thread_count=3))
    return tmp_path / "ck"


@pytest.mark.parametrize("threads", [1, 4])
def test_torchs_own_checkpoints_are_read(
    tmp_path: Path, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C20: What torch's writer wrote is loaded, also in many small pieces at a time."""
    monkeypatch.setattr(reader, "_RUN_BYTES", 1)
    torch_save(state(), checkpoint_id=tmp_path / "ck")
    into = state(0)
    one = UCVolumeReader(tmp_path / "ck", thread_count=threads)
    load(into, storage_reader=one)

    assert UCVolumeReader is VolumeReader
    assert all(torch.equal(into[f"t{i}"], state()[f"t{i}"]) for i in range(12)) and into["step"] == 1
    assert one.timings.read_bytes == (tmp_path / "ck" / "__0_0.distcp").stat().st_size


def test_files_are_read_in_their_order(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mount is told the files in order, and each piece is read once, by ascending offset."""
    told: list[list[str]] = []
    read: list[tuple[str, int]] = []

    def prefetch(directory: Path, names: Iterable[str]) -> bool:
        told.append(list(names))
        return True

    slice_file = VolumeReader._slice_file

    def sliced(self: VolumeReader, file: Any, info: Any) -> Any:
        read.append((info.relative_path, info.offset))
        return slice_file(self, file, info)

    monkeypatch.setattr(reader, "prefetch", prefetch)
    monkeypatch.setattr(VolumeReader, "_slice_file", sliced)
    load(state(0), storage_reader=VolumeReader(checkpoint, thread_count=1))

    assert told == [["__0_0.distcp", "__0_1.distcp", "__0_2.distcp"]]
    assert len(read) == 13 and read == sorted(read)


@pytest.mark.parametrize("damage", ["removed", "cut"])
def test_a_file_that_is_not_whole_is_named(checkpoint: Path, damage: str) -> None:
    """C17: A missing or short file is named before anything is read into the state."""
    path = checkpoint / "__0_2.distcp"
    size = path.stat().st_size
    if damage == "removed":
        path.unlink()
    else:
        os.truncate(path, size - 1)
    into = state(0)
    expected = "is missing" if damage == "removed" else f"has {size - 1} bytes, not {size}"

    with pytest.raises(CheckpointDamaged, match=rf"__0_2\.distcp {expected}"):
        load(into, checkpoint_id=checkpoint)
    assert not any(into[f"t{i}"].any() for i in range(12))


def test_bytes_that_are_no_tensor_are_named(checkpoint: Path) -> None:
    """C17: A file of the right size with other bytes in it is named, too."""
    path = checkpoint / "__0_1.distcp"
    path.write_bytes(b"\0" * path.stat().st_size)
    with pytest.raises(CheckpointDamaged, match=r"__0_1\.distcp cannot be read"):
        load(state(0), checkpoint_id=checkpoint)


def test_no_checkpoint_is_no_damage(tmp_path: Path, checkpoint: Path) -> None:
    """C17: Without metadata there is no checkpoint; with unreadable metadata there is a damaged one."""
    for path in (tmp_path / "never", tmp_path):
        with pytest.raises(CheckpointMissing, match="no complete checkpoint") as caught:
            load(state(0), checkpoint_id=path)
        assert isinstance(caught.value, FileNotFoundError) and caught.value.errno == errno.ENOENT
    for content in (b"", b"nonsense"):
        (checkpoint / ".metadata").write_bytes(content)
        with pytest.raises(CheckpointDamaged, match=r"\.metadata"):
            load(state(0), checkpoint_id=checkpoint)


def test_an_error_of_a_read_keeps_its_errno(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C28: EIO of one file: its errno and its path arrive, and the other threads end."""
    slice_file = VolumeReader._slice_file

    def sliced(self: VolumeReader, file: Any, info: Any) -> Any:
        if info.relative_path == "__0_1.distcp":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return slice_file(self, file, info)

    monkeypatch.setattr(VolumeReader, "_slice_file", sliced)
    with pytest.raises(CheckpointFailed, match=r"__0_1\.distcp") as caught:
        load(state(0), checkpoint_id=checkpoint)
    assert caught.value.errno == errno.EIO


def test_only_a_volfs_mount_is_asked_by_o_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a mount the size is that of a fresh open, elsewhere that of stat, which works everywhere."""
    (tmp_path / "f").write_bytes(b"abc")
    opened: list[int] = []
    real = os.open

    def spy(path: Any, flags: int, *more: Any, **named: Any) -> int:
        opened.append(flags & os.O_DIRECT)
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", spy)
    assert files.current_size(tmp_path / "f") == 3 and opened == []
    monkeypatch.setattr(files, "is_volfs", lambda path: True)
    assert files.current_size(tmp_path / "f") == 3 and opened == [os.O_DIRECT]
