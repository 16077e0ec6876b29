"""Checkpoints on mounts: freshness, daemons and ranks that are killed, and what torch itself writes."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_loader import load as torch_load
from torch.distributed.checkpoint.state_dict_saver import save as torch_save
from volfs_client import CheckpointFailed, CheckpointManager, VolumeReader, VolumeWriter
from volfs_client.checkpoint import load, save
from volfs_client.checkpoint import reader as reader_module
from volfs_client.mount import prefetch

from tests.client.gang import Died, Gang
from tests.client.rank_tasks import KillingFiles
from tests.conftest import Area
from tests.mount import mounts
from tests.mount.volume import PLAIN, REPOSITORY, Volume, eventually

pytestmark = [
    pytest.mark.modes("cached"),
    pytest.mark.timeout(180),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]


#: A daemon whose store says that it is remote: nothing notifies, so that it believes for a while.
REMOTE = REPOSITORY / "tests" / "mount" / "faulty_store.py"


def state(value: float) -> dict[str, Any]:
    return {**{f"t{i}": torch.full((10_000 + i,), value + i) for i in range(4)}, "step": int(value)}


def step_of(manager: CheckpointManager) -> Any:
    into = state(0)
    manager.restore(into)
    assert all(into[f"t{i}"].unique().tolist() == [into["step"] + i] for i in range(4))
    return into["step"]


@pytest.mark.long
@pytest.mark.skipif(PLAIN, reason="without a mount nothing is believed")
def test_a_load_sees_what_was_saved_elsewhere(make_volume: Callable[..., Volume], tmp_path: Path) -> None:
    """A mount of a remote store believes for a minute what it knows: the reader asks all the same (R1)."""
    options = ("--cache", "on", "--freshness", "60", "--poll-interval", "60")
    environment = {"VOLFS_TEST_FAULTS": str(tmp_path), "VOLFS_TEST_STORE": "remote"}
    one = make_volume(*options, environment=environment).mount_by(REMOTE)
    other = Volume(one.base, options, "b", one.backing, environment)
    one.others.append(other)
    other.mount_by(REMOTE)
    save(state(1), checkpoint_id=one.mountpoint / "ck")
    path = other.mountpoint / "ck"
    into = state(0)
    load(into, checkpoint_id=path)
    assert into["step"] == 1 and (path / ".metadata").stat().st_size > 0

    save(state(2), storage_writer=VolumeWriter(one.mountpoint / "ck", overwrite=True, thread_count=2))
    load(into, checkpoint_id=path)
    assert into["step"] == 2


def test_hints_reach_the_mount(area: Area, monkeypatch: pytest.MonkeyPatch) -> None:
    """A load through the second mount passes its files on as a hint, and reads what the first one saved."""
    taken: list[bool] = []
    monkeypatch.setattr(reader_module, "prefetch", lambda *hint: taken.append(prefetch(*hint)))
    writer = VolumeWriter(area.here / "ck", thread_count=4)
    save(state(5), storage_writer=writer)
    reader, into = VolumeReader(area.there / "ck"), state(0)
    load(into, storage_reader=reader)
    assert into["step"] == 5 and torch.equal(into["t3"], state(5)["t3"])
    assert reader.timings.read_bytes == writer.timings.written_bytes
    assert taken == [not PLAIN]


@pytest.mark.skipif(PLAIN, reason="there is no daemon to kill")
def test_the_daemon_is_killed_in_a_save(make_volume: Callable[..., Volume]) -> None:
    """The save fails, nothing is published, and after the next mount the checkpoint before it loads."""
    volume = make_volume(mode="cached").mount()
    manager = CheckpointManager(volume.mountpoint / "run", thread_count=4)
    manager.save(1, state(1))
    made = VolumeWriter.__init__

    def init(self: VolumeWriter, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.fs = KillingFiles("__0_1.distcp", volume.pid)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VolumeWriter, "__init__", init)
        with pytest.raises(CheckpointFailed) as caught:
            manager.save(2, state(2))
    assert caught.value.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
    eventually(lambda: not mounts.is_running(volume.pid), 10, "the killed daemon ended")
    volume.remount()
    assert manager.latest() == 1 and step_of(manager) == 1
    manager.save(2, state(2))
    assert step_of(manager) == 2
    assert sorted(os.listdir(manager.root)) == ["step-1", "step-2"], "what was left is gone"
    for kept in json.loads(volume.volfs("recover", "list", "--json", str(volume.mountpoint)).stdout)["kept"]:
        assert "/.step-2." in kept["path"], "only files of the failed save are unfinished"
        volume.volfs("recover", "discard", "--yes", str(volume.mountpoint), kept["id"])


@pytest.mark.long
@pytest.mark.parametrize(
    ("moment", "newest"),
    [("before replace", 1), ("after replace", 1), ("before rename", 1), ("after rename", 2)],
)
def test_a_rank_is_killed_while_it_publishes(area: Area, tmp_path: Path, moment: str, newest: int) -> None:
    """Wherever the coordinator dies: the other's save raises, and the newest complete checkpoint loads."""
    each: list[dict[str, Any]] = [{"root": area.here / "run"}, {"root": area.there / "run"}]
    with Gang(2, tmp_path) as gang:
        first = gang.do("save", each=each, world=2, step=1)
        told = [{**each[0], "moment": moment}, each[1]]
        died, other = gang.do("fail", each=told, world=2, step=2, threads=2)
        assert isinstance(died, Died)
        assert isinstance(other, Exception) and not isinstance(other, Died), other
    with Gang(2, tmp_path) as gang:
        found = gang.do("restore", each=each, world=2)
        assert [step for step, _ in found] == [newest] * 2
        assert newest == 2 or found == [(1, first[0])] * 2
        saved = gang.do("save", each=each, world=2, step=3)
        assert gang.do("restore", each=each, world=2) == [(3, saved[0])] * 2
    names = sorted(path.name for path in (area.back / "run").iterdir())
    assert names == [*("step-1", "step-2")[:newest], "step-3"], "what the dead left is gone"


@pytest.mark.parametrize("threads", [1, 4])
def test_torchs_own_writer(area: Area, threads: int) -> None:
    """torch's FileSystemWriter, also over a checkpoint that is there: what the other mount loads is right."""
    for step in (1, 2):
        writer = FileSystemWriter(area.here / "ck", thread_count=threads)
        if step == 2:
            with pytest.warns(UserWarning, match="existing checkpoint"):
                torch_save(state(step), storage_writer=writer)
        else:
            torch_save(state(step), storage_writer=writer)
        into = state(0)
        torch_load(into, checkpoint_id=area.there / "ck")
        assert into["step"] == step and torch.equal(into["t2"], state(step)["t2"])
        load(into, checkpoint_id=area.there / "ck")
        assert torch.equal(into["t3"], state(step)["t3"])


def test_hugging_face_with_consolidation(area: Area) -> None:
    """The consolidated file, which is closed, opened again and appended to, is right on the other mount."""
    from safetensors.torch import load_file

    tensors = {name: value for name, value in state(3.0).items() if name != "step"}
    torch_save(
        dict(tensors),
        storage_writer=HuggingFaceStorageWriter(
            str(area.here / "hf"),
            fqn_to_index_mapping={"t0": 1, "t1": 1, "t2": 2, "t3": 2},
            save_distributed=True,
            enable_consolidation=True,
        ),
    )
    files = sorted((area.there / "hf").glob("*.safetensors"))
    assert [path.name for path in files] == [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    found = {name: tensor for path in files for name, tensor in load_file(path).items()}
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    torch_load(into, storage_reader=HuggingFaceStorageReader(str(area.there / "hf")))
    assert all(torch.equal(into[name], tensors[name]) for name in tensors)


def test_single_files(area: Area) -> None:
    """torch.save and torch.load(mmap=True), save_file, and a mapping that is written after its last flush."""
    from safetensors.torch import load_file, save_file

    torch.save(state(4), area.here / "one.pt")
    loaded = torch.load(area.there / "one.pt", mmap=True)
    assert loaded["step"] == 4 and torch.equal(loaded["t1"], state(4)["t1"])
    save_file({"w": state(4)["t2"]}, area.here / "one.safetensors")
    assert torch.equal(load_file(area.there / "one.safetensors")["w"], state(4)["t2"])

    np.zeros(100_000, dtype=np.float32).tofile(area.here / "m.bin")
    mapped = np.memmap(area.here / "m.bin", dtype=np.float32, mode="r+")
    mapped[:] = 1
    mapped.flush()
    mapped[50_000:] = 2
    del mapped
    area.settle()
    there = np.fromfile(area.there / "m.bin", dtype=np.float32)
    assert (there[:50_000] == 1).all() and (there[50_000:] == 2).all()
    assert os.listdir(area.there) and not list(area.back.glob("*.conflict-*"))
