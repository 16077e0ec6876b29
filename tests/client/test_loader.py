"""The loader: what it counts, in every way to start workers; what it refuses; what it tells of time."""

from __future__ import annotations

import copy
import itertools
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.utils.data
from torch.utils.data import IterableDataset
from volfs_client import BatchTiming, Checkpointable, DataLoader, StateMismatch, VolumeDataset

from tests.client.loading import Steps, make_files, number, reference, simulate_workers


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Twenty files."""
    return make_files(tmp_path / "files", 20)


def make(directory: Path, batch: int | None = 4, **options: Any) -> DataLoader:
    """A loader with shuffled numbers, without workers unless asked for."""
    given = {"num_workers": 0} | options
    return DataLoader(VolumeDataset(directory, shuffle=True, transform=number), batch, **given)


def steps(loader: Any, count: int | None = None) -> Steps:
    """Batches as lists."""
    return [batch.tolist() for batch in itertools.islice(loader, count)]


def whole(epoch: int, width: int = 4, total: int = 20) -> Steps:
    """An epoch's batches."""
    return reference(total, 0, epoch, width)


# -- workers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "persistent"),
    [
        *[("fork", False), ("fork", True), ("spawn", True), ("forkserver", True)],
        *[pytest.param(method, False, marks=pytest.mark.long) for method in ("spawn", "forkserver")],
    ],
)
def test_workers_however_they_are_started(directory: Path, method: str, persistent: bool) -> None:
    """C4: Epochs advance, `set_epoch` is heard, and a position is loaded, in workers of any kind.

    The rank is the main process's: a spawned worker has no launcher and no process group.
    """
    files = VolumeDataset(directory, shuffle=True, transform=number, rank=1, world_size=2)
    loader = DataLoader(
        files, 2, num_workers=1, multiprocessing_context=method, persistent_workers=persistent
    )
    mine = [[step[2:] for step in whole(epoch)] for epoch in range(10)]
    assert steps(loader) == mine[0]
    assert steps(loader, 2) == mine[1][:2]
    assert loader.state_dict()["consumed"] == 8
    files.set_epoch(7)
    assert steps(loader) == mine[7]
    loader.load_state_dict(loader.state_dict() | {"epoch": 9, "consumed": 12})
    assert steps(loader) == mine[9][3:]


def test_living_workers_of_pytorchs_loader_count_epochs(directory: Path) -> None:
    """Without this loader, workers that live on advance by themselves, all alike, and hear `set_epoch`."""
    files = VolumeDataset(directory, shuffle=True, transform=number, batch_size=4)
    loader: Any = torch.utils.data.DataLoader(
        files, 4, num_workers=2, persistent_workers=True, multiprocessing_context="fork"
    )
    assert [steps(loader) for _ in range(3)] == [whole(0), whole(1), whole(2)]
    files.set_epoch(1)
    assert [steps(loader) for _ in range(2)] == [whole(1), whole(2)]


def test_an_error_in_a_worker_ends_the_iteration(directory: Path) -> None:
    """It is the caller's; what follows would be out of order, and does not come. The next pass is right."""

    def fail_at_7(path: Any) -> int:
        if number(path) == 7:
            raise ValueError("no picture")
        return number(path)

    loader = DataLoader(
        VolumeDataset(directory, transform=fail_at_7), 2, num_workers=2, multiprocessing_context="fork"
    )
    running = iter(loader)
    assert [next(running).tolist() for _ in range(3)] == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(ValueError, match="no picture"):
        next(running)
    assert next(running, None) is None
    assert loader.state_dict()["consumed"] == 6
    assert steps(loader, 3) == [[0, 1], [2, 3], [4, 5]]
    # PyTorch's error is in a cycle that has the workers; those that the collector ends it waits for in vain.
    loader._iterator._shutdown_workers()  # type: ignore[union-attr]


def test_a_transform_cannot_end_an_epoch(directory: Path) -> None:
    """C12: StopIteration out of a transform is an error, not the end."""

    def stop(path: Any) -> int:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(DataLoader(VolumeDataset(directory, transform=stop), 2, num_workers=0))


# -- positions ---------------------------------------------------------------------


def test_positions_count_what_was_handed_out(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C8: After each batch, the same for any number of workers; at the last one it is the next epoch."""
    simulate_workers(monkeypatch)
    for workers in range(4):
        loader = make(directory, 6, num_workers=workers)
        seen = []
        for _ in loader:
            state = loader.state_dict()
            seen.append((state["epoch"], state["consumed"]))
        assert seen == [(0, 6), (0, 12), (0, 18), (1, 0)]


def test_an_epoch_left_early_has_a_position_until_the_next(directory: Path) -> None:
    """It stays where it was left, can be gone on from, and the next iteration is of the next epoch."""
    loader = make(directory)
    assert steps(loader, 2) == whole(0)[:2]
    left = loader.state_dict()
    assert (left["epoch"], left["consumed"]) == (0, 8)
    assert steps(loader) == whole(1)
    loader.load_state_dict(left)
    assert loader.state_dict() == left and len(loader) == 3
    assert steps(loader) == whole(0)[2:] and steps(loader) == whole(1)


def test_the_data_set_is_free_again(directory: Path) -> None:
    """Once a loader's iteration was left, the data set by itself goes on to the next epoch."""
    loader = make(directory)
    files: Any = loader.dataset
    steps(loader, 1)
    assert list(files) == [file for step in whole(1) for file in step]


def test_the_loader_that_came_last_leads(directory: Path) -> None:
    """One that goes away takes nothing from another that has begun on the same data set since."""
    files = VolumeDataset(directory, transform=number)
    begun = files.progress.publish(files.next_pass(2))
    later = files.progress.publish(files.next_pass(5))
    files.progress.withdraw(begun)
    led = files.progress.published(files.total, files.tail)
    assert led is not None and led.grid.batch == 5
    copied = copy.deepcopy(files)
    assert copied.progress.published(files.total, files.tail) is None  # the loader leads the other one
    files.progress.withdraw(later)
    assert files.progress.published(files.total, files.tail) is None


def test_a_position_is_not_loaded_under_an_iteration(directory: Path) -> None:
    """C10: StateMismatch while the iterator lives, whether it was asked for a batch yet or not."""
    loader = make(directory)
    state = loader.state_dict()
    running = iter(loader)
    for _ in range(2):
        with pytest.raises(StateMismatch, match="under way"):
            loader.load_state_dict(state)
        next(running)
    del running
    loader.load_state_dict(state)
    running = iter(loader)
    assert len(list(running)) == 5
    loader.load_state_dict(state)
    assert steps(loader) == whole(0)


def test_one_iteration_at_a_time(directory: Path) -> None:
    """C12: A second one takes the place of the first, which says so rather than count wrong."""
    loader = make(directory)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(RuntimeError, match="another iteration"):
        next(first)
    del first
    assert steps(second) == whole(1) and loader.state_dict()["epoch"] == 2


def test_a_position_of_the_data_set_fits_between_steps_only(directory: Path) -> None:
    """What the data set saved between two steps the loader loads; within a step it refuses."""
    files = VolumeDataset(directory, shuffle=True, batch_size=4)
    running = iter(files)
    for count in range(1, 9):
        next(running)
        loader = make(directory)
        loader.load_state_dict(files.state_dict())
        if count % 4:
            with pytest.raises(StateMismatch, match="within a step"):
                iter(loader)
        else:
            assert steps(loader) == whole(0)[count // 4 :]


def test_lengths_and_padding_are_told(directory: Path) -> None:
    """C2: `len` is of the iteration under way or the next; `valid` says how much of a batch is no padding."""
    loader = make(directory, 8)
    assert len(loader) == 3 and loader.epoch == 0
    told = []
    for _ in loader:
        told.append((loader.valid, len(loader), loader.epoch))
    assert told == [(8, 3, 0), (8, 3, 0), (4, 3, 0)] and loader.epoch == 1
    loader.load_state_dict(loader.state_dict() | {"consumed": 16})
    assert len(loader) == 1 and len(loader.dataset) == 4  # type: ignore[arg-type]
    last = VolumeDataset(directory, rank=2, world_size=3)
    rank = DataLoader(last, 4, num_workers=0)
    assert [rank.valid for _ in rank] == [4, 0]


def test_a_rest_that_fills_no_step_is_skipped(directory: Path) -> None:
    """With `drop`, a position so close to the end that nothing is left: nothing, then the next epoch."""
    loader = DataLoader(VolumeDataset(directory, tail="drop", transform=number), 8, num_workers=0)
    loader.load_state_dict(loader.state_dict() | {"consumed": 16})
    assert len(loader) == 0 and steps(loader) == []
    assert (loader.state_dict()["epoch"], loader.state_dict()["consumed"]) == (1, 0)
    assert len(steps(loader)) == 2


def test_no_thread_is_started(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C7: Workers may be forked at any time: a data set, a loader, and an iteration here start none."""
    monkeypatch.setattr(threading.Thread, "start", lambda self: pytest.fail("a thread was started"))
    assert len(steps(make(directory))) == 5


def test_no_shared_memory_has_a_name(directory: Path) -> None:
    """C7: What workers share ends with the processes, also if they are killed: it can be found nowhere."""
    loader = make(directory, num_workers=1)
    running = iter(loader)
    next(running)
    shared = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line]
    assert shared and all(line.endswith("(deleted)") for line in shared)


def test_items_one_by_one(directory: Path) -> None:
    """`batch_size=None`: no collation, and a position after each item."""
    loader = make(directory, None)
    running = iter(loader)
    assert [next(running) for _ in range(3)] == [step[0] for step in whole(0, 1)[:3]]
    assert loader.state_dict()["consumed"] == 3 and len(loader) == 20


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_checkpoints_hold_it(directory: Path, tmp_path: Path) -> None:
    """`dcp.save({"loader": loader})` and `dcp.load` go on where it was, as does pickling by `torch.save`."""
    loader = make(directory)
    assert isinstance(loader, Checkpointable)
    steps(loader, 3)
    dcp.save({"loader": loader}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    torch.save(loader.state_dict(), tmp_path / "pt")
    resumed = make(directory, 2)
    dcp.load({"loader": resumed}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert [item for step in steps(resumed) for item in step] == [i for step in whole(0)[3:] for i in step]
    again = make(directory)
    again.load_state_dict(torch.load(tmp_path / "pt"))
    assert steps(again) == whole(0)[3:]


# -- data sets around data sets ----------------------------------------------------


class Decoded(IterableDataset[int]):
    """Makes `times` items of each path."""

    def __init__(self, files: Any, times: int = 1) -> None:
        self.files = files
        self.times = times

    def __iter__(self) -> Iterator[int]:
        for path in self.files:
            yield from [number(path)] * self.times


def test_a_data_set_around_one(directory: Path) -> None:
    """A wrapping decoder is led through: workers, epochs, and positions are those of the files."""
    files = VolumeDataset(directory, shuffle=True)
    loader = DataLoader(Decoded(Decoded2(files)), 4, num_workers=2, multiprocessing_context="fork")
    assert steps(loader) == whole(0)
    assert steps(loader, 1) == whole(1)[:1]
    loader.load_state_dict(loader.state_dict())
    assert steps(loader) == whole(1)[1:]


class Decoded2(IterableDataset[Any]):
    """Hands paths on."""

    def __init__(self, inner: VolumeDataset) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        return iter(self.inner)


@pytest.mark.parametrize(("times", "came"), [(0, "0 came"), (2, "more came")])
def test_one_item_for_each_path(directory: Path, times: int, came: str) -> None:
    """C12: Fewer or more would make every position wrong: an error, not a shifted order."""
    with pytest.raises(RuntimeError, match=f"5 batches were due and {came}"):
        list(DataLoader(Decoded(VolumeDataset(directory), times), 4, num_workers=0))


def test_other_data_sets_are_refused(directory: Path) -> None:
    """Map-style ones, others' iterables, and those around several, with what to use instead."""
    files = VolumeDataset(directory)
    for other in ([1, 2], Decoded([1]), Decoded(Decoded(iter(files)))):
        with pytest.raises(TypeError, match=r"torch\.utils\.data\.DataLoader"):
            DataLoader(other)  # type: ignore[arg-type]
    both = Decoded(files)
    both.more = VolumeDataset(directory)  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="has 2"):
        DataLoader(both)


# -- options -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "option",
    [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}, {"drop_last": True}, {"in_order": False}],
)
def test_what_would_break_the_promise_is_refused(directory: Path, option: dict[str, Any]) -> None:
    """C12: Each with what to say instead."""
    with pytest.raises(ValueError, match=next(iter(option))):
        DataLoader(VolumeDataset(directory), 2, **option)
    with pytest.raises(ValueError, match="batch_size=3"):
        DataLoader(VolumeDataset(directory, batch_size=3), 2)


@pytest.mark.parametrize(
    ("cpus", "ranks", "workers"), [(2, "1", 2), (64, "1", 8), (64, "16", 4), (2, "8", 1)]
)
def test_defaults(
    directory: Path, monkeypatch: pytest.MonkeyPatch, cpus: int, ranks: str, workers: int
) -> None:
    """Workers from the CPUs and the ranks on this machine, which live on; pinning with a GPU."""
    monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cpus))
    monkeypatch.setattr(torch.utils.data.DataLoader, "check_worker_number_rationality", lambda self: None)
    loader = DataLoader(VolumeDataset(directory), 2)
    assert loader.num_workers == workers and loader.persistent_workers and loader.prefetch_factor == 4
    assert loader.pin_memory is torch.accelerator.is_available()
    chosen = DataLoader(VolumeDataset(directory), 2, num_workers=0, timeout=0)
    assert (chosen.persistent_workers, chosen.prefetch_factor) == (False, None)


def test_time_is_told_of_each_batch(directory: Path) -> None:
    """C30: Each batch once, when its work is done, with what it was; the last one too."""
    told: list[BatchTiming] = []
    loader = make(directory, 8, on_batch=told.append)
    for done, _ in enumerate(loader):
        assert len(told) == done
    assert [(each.epoch, each.batch, each.samples) for each in told] == [(0, 0, 8), (0, 1, 8), (0, 2, 4)]
    assert all(each.wait_s > 0 and each.compute_s > 0 for each in told)
    steps(loader, 2)
    assert [each.epoch for each in told[3:]] == [1]  # of one that was left, nobody knows how long it took
