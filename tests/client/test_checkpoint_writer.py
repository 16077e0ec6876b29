"""VolumeWriter in one process on a local directory: what is published, and what an error leaves."""

from __future__ import annotations

import errno
import os
import pickle
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict_saver import save as torch_save
from volfs_client import (
    CheckpointDamaged,
    CheckpointError,
    CheckpointExists,
    CheckpointFailed,
    UCVolumeWriter,
    VolumeWriter,
)
from volfs_client.checkpoint import load, save

from tests.client.failing import FailingFiles

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def state(value: float = 1.0) -> dict[str, Any]:
    tensors = {f"t{i}": torch.full((50 + i,), value + i) for i in range(6)}
    return {"model": tensors, "step": int(value), "part": torch.arange(100.0)[10:20] * value}


def loaded(path: Path) -> dict[str, Any]:
    into = state(0)
    load(into, checkpoint_id=path)
    return into


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


@pytest.mark.parametrize("threads", [1, 4])
def test_what_is_saved_is_loaded(tmp_path: Path, threads: int) -> None:
    """Tensors, views and plain values come back; files have torch's names, and none is empty."""
    writer = VolumeWriter(tmp_path / "new" / "ck", thread_count=threads)
    save(state(), storage_writer=writer)

    names = {path.name for path in (tmp_path / "new" / "ck").iterdir()}
    assert names == {".metadata", *(f"__0_{i}.distcp" for i in range(threads))}
    assert same(loaded(tmp_path / "new" / "ck"), state())
    assert writer.timings.written_bytes > 0 and writer.timings.mib_per_s > 0


def test_one_writer_for_several_checkpoints(tmp_path: Path) -> None:
    """The place of each save is that of its call; one that fails removes what is its own."""
    writer = VolumeWriter(tmp_path / "none")
    for number in (1, 2):
        save(state(number), checkpoint_id=tmp_path / str(number), storage_writer=writer)
    with pytest.raises(CheckpointExists):
        save(state(3), checkpoint_id=tmp_path / "1", storage_writer=writer)
    assert sorted(os.listdir(tmp_path)) == ["1", "2"]
    assert [loaded(tmp_path / str(number))["step"] for number in (1, 2)] == [1, 2]


def test_a_file_system_that_syncs_no_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so by errnos that are no failure of the save; any other one is."""
    sync = os.fsync

    def refusing(number: int) -> None:
        def synced(fd: int) -> None:
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(number, os.strerror(number))
            sync(fd)

        monkeypatch.setattr(os, "fsync", synced)

    for number in (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF):
        refusing(number)
        save(state(number), checkpoint_id=tmp_path / str(number))
        assert loaded(tmp_path / str(number))["step"] == number
    refusing(errno.EIO)
    with pytest.raises(CheckpointFailed) as caught:
        save(state(), checkpoint_id=tmp_path / "bad")
    assert caught.value.errno == errno.EIO


def test_more_threads_than_items(tmp_path: Path) -> None:
    """Threads without work make no file."""
    save({"x": torch.ones(3)}, storage_writer=VolumeWriter(tmp_path / "ck", thread_count=4))

    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == [".metadata", "__0_0.distcp"]


def test_torchs_own_reader_loads_it(tmp_path: Path) -> None:
    """C20: It is an ordinary checkpoint: torch's reader needs nothing of ours, and the alias is the class."""
    from torch.distributed.checkpoint.state_dict_loader import load as torch_load

    torch_save(state(), checkpoint_id=tmp_path / "ck", storage_writer=UCVolumeWriter(tmp_path / "other"))
    into = state(0)
    torch_load(into, checkpoint_id=tmp_path / "ck")

    assert UCVolumeWriter is VolumeWriter
    assert same(into, state())
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(("threads", "file"), [(1, 0), *((4, file) for file in range(4))])
def test_an_error_of_any_thread_fails_the_save(tmp_path: Path, threads: int, file: int, number: int) -> None:
    """C14: Whichever file fails, in whichever thread: the true errno, nothing published, nothing left."""
    writer = VolumeWriter(tmp_path / "ck", thread_count=threads)
    writer.fs = FailingFiles(f"__0_{file}.distcp", number)

    with pytest.raises(CheckpointFailed, match=os.strerror(number)) as caught:
        save(state(), storage_writer=writer)
    assert caught.value.errno == number
    assert isinstance(caught.value.failures[0], OSError)
    assert list((tmp_path / "ck").iterdir()) == []


def test_torchs_own_exception_is_no_exception(tmp_path: Path) -> None:
    """C28: Through torch's save the same error arrives as CheckpointException, with the errno of the rank."""
    writer = VolumeWriter(tmp_path / "ck", thread_count=4)
    writer.fs = FailingFiles(".distcp", errno.EDQUOT)
    with pytest.raises(CheckpointException) as caught:
        torch_save(state(), storage_writer=writer)
    assert caught.value.failures[0][0].errno == errno.EDQUOT
    assert list((tmp_path / "ck").iterdir()) == []


def test_a_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    """C16: A second save into the directory is refused, and the first checkpoint stays as it was."""
    save(state(1), checkpoint_id=tmp_path / "ck")
    with pytest.raises(CheckpointExists, match="overwrite=True") as caught:
        save(state(2), checkpoint_id=tmp_path / "ck")
    assert caught.value.errno == errno.EEXIST
    assert same(loaded(tmp_path / "ck"), state(1))


def test_overwriting_replaces_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the new metadata is in its place the old checkpoint loads; then only the new one is there."""
    save(state(1), checkpoint_id=tmp_path / "ck")
    (tmp_path / "ck" / "__0_3.distcp").write_text("left by a save that died")
    (tmp_path / "ck" / "notes.txt").write_text("not ours")
    real, seen = os.replace, []

    def replace(source: Any, target: Any) -> None:
        seen.append(same(loaded(tmp_path / "ck"), state(1)))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    save(state(2), storage_writer=VolumeWriter(tmp_path / "ck", overwrite=True, thread_count=2))

    assert seen == [True]
    assert same(loaded(tmp_path / "ck"), state(2))
    left = sorted(path.name for path in (tmp_path / "ck").iterdir())
    assert len(left) == 4 and left[0] == ".metadata" and left[-1] == "notes.txt"


@pytest.mark.parametrize("file", ["_0.distcp", "_1.distcp"])
def test_a_failed_overwriting_leaves_the_old_one(tmp_path: Path, file: str) -> None:
    """C16: With an error in any file the old checkpoint loads, and nothing of the new one is left."""
    save(state(1), storage_writer=VolumeWriter(tmp_path / "ck", thread_count=2))
    before = sorted(path.name for path in (tmp_path / "ck").iterdir())
    writer = VolumeWriter(tmp_path / "ck", overwrite=True, thread_count=2)
    writer.fs = FailingFiles(file, errno.ENOSPC)

    with pytest.raises(CheckpointFailed):
        save(state(2), storage_writer=writer)
    assert same(loaded(tmp_path / "ck"), state(1))
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == before


def test_everything_is_durable_before_it_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data is synced before the metadata, that with all its bytes before its rename, the directory after."""
    calls: list[tuple[str, str, int]] = []
    sync, replace = os.fsync, os.replace

    def synced(fd: int) -> None:
        calls.append(("sync", Path(os.readlink(f"/proc/self/fd/{fd}")).name, os.fstat(fd).st_size))
        sync(fd)

    def replaced(source: Any, target: Any) -> None:
        calls.append(("replace", Path(target).name, 0))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    save(state(), storage_writer=VolumeWriter(tmp_path / "ck", thread_count=2))

    names = [(what, name.split(".")[0] or ".metadata") for what, name, _ in calls]
    assert names[0] == ("sync", tmp_path.name), "the new directory's own name"
    assert sorted(names[1:3]) == [("sync", "__0_0"), ("sync", "__0_1")]
    assert names[3:] == [("sync", ".metadata"), ("replace", ".metadata"), ("sync", "ck")]
    assert calls[3][2] == (tmp_path / "ck" / ".metadata").stat().st_size > 0


def test_the_last_step_can_fail_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: When the directory cannot be synced, the save fails and there is no checkpoint."""
    sync = os.fsync

    def synced(fd: int) -> None:
        if (tmp_path / "ck" / ".metadata").exists():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    monkeypatch.setattr(os, "fsync", synced)
    with pytest.raises(CheckpointFailed) as caught:
        save(state(), checkpoint_id=tmp_path / "ck")
    assert caught.value.errno == errno.EIO
    assert list((tmp_path / "ck").iterdir()) == []


def test_what_is_published_stays_whatever_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the new metadata is in the old one's place already, a failure takes no file of it away."""
    save(state(1), checkpoint_id=tmp_path / "ck")
    replace, sync, replaced = os.replace, os.fsync, threading.Event()

    def replacing(source: Any, target: Any) -> None:
        replace(source, target)
        replaced.set()

    def synced(fd: int) -> None:
        if replaced.is_set():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(fd)

    monkeypatch.setattr(os, "replace", replacing)
    monkeypatch.setattr(os, "fsync", synced)
    with pytest.raises(CheckpointFailed):
        save(state(2), storage_writer=VolumeWriter(tmp_path / "ck", overwrite=True))
    assert same(loaded(tmp_path / "ck"), state(2))


def test_an_item_that_nobody_wrote_fails_the_save(tmp_path: Path) -> None:
    """C17: A planner that lists more than it gives to write is found out before anything is published."""

    class Forgetful(DefaultSavePlanner):
        def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
            plans, metadata = super().create_global_plan(all_plans)
            plans[0].items.pop()
            return plans, metadata

    with pytest.raises(CheckpointError, match="no rank wrote"):
        save(state(), checkpoint_id=tmp_path / "ck", planner=Forgetful())
    assert list((tmp_path / "ck").iterdir()) == []


def test_a_file_that_the_store_lost_fails_the_save(tmp_path: Path) -> None:
    """Bytes that went missing between the ranks' writes and the coordinator's look are noticed by name."""

    class Losing(VolumeWriter):
        def finish(self, metadata: Metadata, results: Any) -> None:
            os.truncate(Path(self.path) / "__0_1.distcp", 10)
            super().finish(metadata, results)

    with pytest.raises(CheckpointDamaged, match=r"__0_1\.distcp has 10 bytes, not \d+"):
        save(state(), storage_writer=Losing(tmp_path / "ck", thread_count=2))
    assert list((tmp_path / "ck").iterdir()) == []


def test_ranks_that_save_without_each_other(tmp_path: Path) -> None:
    """Without collectives each rank has files and metadata of its own, loads them, and is not overwritten."""
    save(state(3), checkpoint_id=tmp_path / "ck", use_collectives=False)
    assert sorted(path.name for path in (tmp_path / "ck").iterdir()) == ["__0.metadata", "__0_0.distcp"]
    assert same(loaded(tmp_path / "ck"), state(3))
    with pytest.raises(CheckpointExists):
        save(state(4), checkpoint_id=tmp_path / "ck")

    save(state(4), storage_writer=VolumeWriter(tmp_path / "ck", overwrite=True))
    assert (tmp_path / "ck" / ".metadata").exists() and not (tmp_path / "ck" / "__0.metadata").exists()
    with pytest.raises(CheckpointExists, match="remove it first"):
        save(state(5), storage_writer=VolumeWriter(tmp_path / "ck", overwrite=True), use_collectives=False)
    assert same(loaded(tmp_path / "ck"), state(4))


def test_a_writer_can_be_pickled_and_is_told_the_rank(tmp_path: Path) -> None:
    """What a save in another process needs, and what torch looks for before it says which rank this is."""
    import inspect

    writer = pickle.loads(pickle.dumps(VolumeWriter(tmp_path / "ck", thread_count=3)))
    assert (writer.thread_count, writer.overwrite, writer.path) == (3, False, tmp_path / "ck")
    assert "kwargs" in inspect.signature(writer.set_up_storage_writer).parameters


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    """No threads; a format that could not be loaded again; no place to save to."""
    with pytest.raises(ValueError, match="at least 1"):
        VolumeWriter(tmp_path, thread_count=0)
    with pytest.raises(ValueError, match="HuggingFaceStorageWriter"):
        VolumeWriter(tmp_path, serialization_format=filesystem.SerializationFormat.SAFETENSORS)
    with pytest.raises(ValueError, match="checkpoint_id"):
        save({})
