"""CheckpointManager in one process on a local directory: what there is, what stays, what a failure leaves."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from volfs_client import (
    CheckpointError,
    CheckpointExists,
    CheckpointFailed,
    CheckpointManager,
    CheckpointMissing,
    VolumeWriter,
    temporary,
)
from volfs_client.checkpoint import Saved, save, steps

from tests.client.failing import FailingFiles

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def state(value: float) -> dict[str, Any]:
    return {"w": torch.full((1000,), float(value)), "b": torch.full((10,), -float(value)), "step": value}


def value_of(manager: CheckpointManager, step: int | None = None) -> Any:
    into = state(0)
    manager.restore(into, step)
    assert into["w"].unique().tolist() == [float(into["step"])]
    return into["step"]


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every writer that is made from now on has no space for data."""
    made = VolumeWriter.__init__

    def init(self: VolumeWriter, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.fs = FailingFiles("_0.distcp", errno.ENOSPC)

    monkeypatch.setattr(VolumeWriter, "__init__", init)


def test_steps_are_saved_and_found(tmp_path: Path) -> None:
    """The newest complete one is the latest; what is incomplete or has another name is none."""
    with CheckpointManager(tmp_path / "run") as manager:
        assert manager.steps() == [] and manager.latest() is None
        for step in (1, 20, 3):
            assert manager.save(step, state(step)) == tmp_path / "run" / f"step-{step}"
        (tmp_path / "run" / "step-99").mkdir()
        (tmp_path / "run" / "step-x").mkdir()

        assert manager.steps() == [1, 3, 20] and manager.latest() == 20
        assert value_of(manager) == 20 and value_of(manager, 3) == 3
        with pytest.raises(CheckpointMissing, match="step-99"):
            manager.restore(state(0), 99)
    with pytest.raises(CheckpointMissing):
        CheckpointManager(tmp_path / "none").restore(state(0))


def test_only_the_newest_stay(tmp_path: Path) -> None:
    """No more than keep_last remain, and the one that was just saved is one of them, whatever its number."""
    manager = CheckpointManager(tmp_path, keep_last=2)
    for step in (10, 20, 30):
        manager.save(step, state(step))
    assert manager.steps() == [20, 30]
    manager.save(5, state(5))
    assert manager.steps() == [5, 20, 30]
    manager.save(40, state(40))
    assert manager.steps() == [30, 40]
    assert sorted(os.listdir(tmp_path)) == ["step-30", "step-40"]


def test_nothing_is_deleted_for_a_save_that_fails(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """C19: A failed save leaves the older checkpoints, none of its own, and no hidden directory."""
    manager = CheckpointManager(tmp_path, keep_last=1)
    manager.save(1, state(1))
    request.getfixturevalue("failing")
    with pytest.raises(CheckpointFailed) as caught:
        manager.save(2, state(2))
    assert caught.value.errno == errno.ENOSPC
    assert os.listdir(tmp_path) == ["step-1"] and value_of(manager) == 1


def test_what_could_not_be_removed_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """What a failed save leaves where the mount is away goes with the next save, by another manager too."""
    with monkeypatch.context() as away:
        away.setattr(steps, "_remove_tree", lambda path: None)
        request.getfixturevalue("failing")
        with pytest.raises(CheckpointFailed):
            CheckpointManager(tmp_path).save(1, state(1))
    assert [name[:8] for name in os.listdir(tmp_path)] == [".step-1."]
    monkeypatch.undo()
    CheckpointManager(tmp_path).save(2, state(2))
    assert os.listdir(tmp_path) == ["step-2"]


@pytest.mark.parametrize("moment", ["metadata", "directory"])
def test_a_checkpoint_appears_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    """C13: Before the last rename there is no checkpoint, nor if that of the metadata or directory fails."""
    name = "replace" if moment == "metadata" else "rename"

    def refuse(source: Any, target: Any) -> None:
        assert not (tmp_path / "step-1").exists()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, name, refuse)
    with pytest.raises(CheckpointFailed):
        CheckpointManager(tmp_path).save(1, state(1))
    assert os.listdir(tmp_path) == []


def test_somebody_else_made_it_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C16: A directory of the name that appears during the save is not replaced."""
    rename = os.rename

    def late(source: Any, target: Any) -> None:
        (tmp_path / "step-1").mkdir()
        (tmp_path / "step-1" / "theirs").write_text("x")
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(CheckpointExists, match="meanwhile"):
        CheckpointManager(tmp_path).save(1, state(1))
    assert os.listdir(tmp_path) == ["step-1"] and os.listdir(tmp_path / "step-1") == ["theirs"]


def test_a_step_is_saved_once_unless_asked_for(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A second save of a step is refused; with overwrite=True it replaces the first when it is complete."""
    CheckpointManager(tmp_path).save(7, state(1))
    with pytest.raises(CheckpointExists, match="overwrite=True"):
        CheckpointManager(tmp_path).save(7, state(2))
    again = CheckpointManager(tmp_path, overwrite=True)
    again.save(7, state(3))
    assert value_of(again) == 3
    request.getfixturevalue("failing")
    with pytest.raises(CheckpointFailed):
        again.save(7, state(4))
    assert value_of(again, 7) == 3


def test_a_store_without_renames_of_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C13: With atomic=False the metadata marks what is complete, what a dead save left is saved over, and
    retention works.
    """

    def refuse(source: Any, target: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "rename", refuse)
    manager = CheckpointManager(tmp_path, keep_last=1, atomic=False)
    (tmp_path / "step-1").mkdir()
    (tmp_path / "step-1" / "__0_0.distcp").write_text("left")
    manager.save(1, state(1))
    assert value_of(manager) == 1
    manager.save(2, state(2))
    assert os.listdir(tmp_path) == ["step-2"]


def test_a_save_in_the_background(tmp_path: Path) -> None:
    """C18: The state is that of the call, the Future answers the path, and one save waits for the other."""
    said: list[Saved] = []
    with CheckpointManager(tmp_path, keep_last=2, on_saved=said.append) as manager:
        futures: list[Future[Path]] = []
        running = state(1)
        for step in (1, 2, 3):
            running["w"].fill_(step)
            running["b"].fill_(-step)
            running["step"] = step
            futures.append(manager.async_save(step, running))
            assert all(future.done() for future in futures[:-1])
        running["w"].zero_()
    assert [future.result() for future in futures] == [tmp_path / f"step-{step}" for step in (1, 2, 3)]
    assert manager.steps() == [2, 3] and value_of(manager) == 3
    assert [one.step for one in said] == [1, 2, 3]
    assert all(0 < one.blocked_s <= one.total_s and one.timings.written_bytes > 4000 for one in said)


def test_a_stager_of_ones_own(tmp_path: Path) -> None:
    """torch answers another type then; here it is a Future of the path all the same."""
    stager = DefaultStager(StagingOptions(False, False, use_async_staging=True, use_non_blocking_copy=False))
    with CheckpointManager(tmp_path) as manager:
        assert manager.async_save(1, state(1), stager=stager).result() == tmp_path / "step-1"
        assert value_of(manager) == 1
    stager.close()


@pytest.mark.usefixtures("failing")
def test_an_error_in_the_background_is_raised_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The Future, and the next save, raise it; it is logged; nothing of it is left; then saving goes on."""
    manager = CheckpointManager(tmp_path)
    future = manager.async_save(1, state(1))
    with pytest.raises(CheckpointFailed, match="No space left"):
        future.result()
    with pytest.raises(CheckpointFailed, match="No space left"):
        manager.async_save(2, state(2))
    assert os.listdir(tmp_path) == []
    assert "step 1 is not saved" in caplog.text
    manager.close()


def test_a_callback_that_fails_does_not_fail_the_save(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What on_saved raises is logged, and the checkpoint is there."""

    def broken(saved: Saved) -> None:
        raise RuntimeError("no tracking server")

    manager = CheckpointManager(tmp_path, on_saved=broken)
    manager.save(1, state(1))
    assert manager.latest() == 1 and "no tracking server" in caplog.text


def test_what_the_dead_left_is_removed(tmp_path: Path) -> None:
    """Hidden directories of dead processes of this machine go at once, of others when they are old enough.

    Also if their process ids are used again.
    """
    ask = "from volfs_client import temporary; print(temporary.owner())"
    dead = subprocess.run(
        [sys.executable, "-c", ask], capture_output=True, text=True, check=True
    ).stdout.strip()
    here, old = temporary.owner(), 10_000.0
    other = "0000000000000000-1-1"
    for name in (
        f".step-1.{dead}-00000000.tmp",
        f".step-1.{here}0-00000000.tmp",
        f".step-1.{here}-00000000.tmp",
        f".step-1.{here}-00000000.old",
        f".step-2.{other}-00000000.tmp",
        f".step-3.{other}-00000000.old",
        ".other",
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__0_0.distcp").write_text("x")
    young, stale = tmp_path / f".step-2.{other}-00000000.tmp", tmp_path / f".step-3.{other}-00000000.old"
    for path in [young, *stale.iterdir(), stale]:
        os.utime(path, (old, old))
    CheckpointManager(tmp_path).save(9, state(9))

    assert sorted(os.listdir(tmp_path)) == [
        ".other",
        f".step-1.{here}-00000000.old",
        f".step-1.{here}-00000000.tmp",
        young.name,
        "step-9",
    ]


def test_others_delete_at_the_same_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """C19: What is gone already is no error and no warning; what cannot be deleted is a warning."""
    kept = steps.Steps(tmp_path)
    kept.remove(5)
    save(state(1), checkpoint_id=kept.path(1))
    threads = [threading.Thread(target=kept.remove, args=(1,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert os.listdir(tmp_path) == []
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    (tmp_path / "step-2").mkdir()
    with pytest.MonkeyPatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(os, "rename", lambda *names: os.unlink("/"))
        kept.remove(2)
    assert "cannot be deleted" in caplog.text


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    """Numbers that mean nothing, and a process without a group for it."""
    for keep in (0, -1):
        with pytest.raises(ValueError, match="keep_last"):
            CheckpointManager(tmp_path, keep)
    with pytest.raises(ValueError, match="mode"):
        CheckpointManager(tmp_path, mode="fiber")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="negative"):
        CheckpointManager(tmp_path).save(-1, {})
    with pytest.raises(CheckpointError, match="init_process_group"):
        CheckpointManager(tmp_path, mode="process").async_save(1, state(1))
    assert os.listdir(tmp_path) == []
