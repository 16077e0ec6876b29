"""Which rank this process is: who is believed, what is a contradiction, and who would shard once more."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
import torch.utils.data
from volfs_client import AlreadySharded, RankUnknown, VolumeDataset, ranks


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No launcher, until a test plays one."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_who_is_believed(launcher: pytest.MonkeyPatch) -> None:
    """C3: Nobody: one process. The launcher's variables, and before these the arguments."""
    assert ranks.find_rank() == (0, 1)
    launcher.setenv("RANK", "2")
    launcher.setenv("WORLD_SIZE", "4")
    assert ranks.find_rank() == (2, 4)
    assert ranks.find_rank(1, 3) == (1, 3)


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_half_a_launcher_is_not_guessed(launcher: pytest.MonkeyPatch, name: str) -> None:
    """C3: One variable without the other: RankUnknown names it."""
    launcher.setenv(name, "1")
    with pytest.raises(RankUnknown, match=name):
        ranks.find_rank()


@pytest.mark.parametrize(("rank", "world"), [("4", "4"), ("-1", "4"), ("x", "4"), ("0", "0")])
def test_impossible_variables(launcher: pytest.MonkeyPatch, rank: str, world: str) -> None:
    """What cannot be a rank of so many is said as it is."""
    launcher.setenv("RANK", rank)
    launcher.setenv("WORLD_SIZE", world)
    with pytest.raises(RankUnknown, match=f"RANK={rank} and WORLD_SIZE={world}"):
        ranks.find_rank()


@pytest.mark.parametrize(("rank", "world"), [(0, None), (None, 2), (2, 2), (-1, 2)])
def test_impossible_arguments(rank: int | None, world: int | None) -> None:
    """Both arguments or neither, and one of so many."""
    with pytest.raises(ValueError, match="rank"):
        ranks.find_rank(rank, world)


def test_group_and_launcher_must_agree(launcher: pytest.MonkeyPatch, group: None) -> None:
    """C3: A group is believed, also where the launcher says half; where it says something else, nobody is."""
    assert ranks.find_rank() == (0, 1)
    launcher.setenv("WORLD_SIZE", "1")
    assert ranks.find_rank() == (0, 1)
    launcher.setenv("RANK", "0")
    assert ranks.find_rank() == (0, 1)
    launcher.setenv("WORLD_SIZE", "2")
    with pytest.raises(RankUnknown, match="process_group="):
        ranks.find_rank()
    assert ranks.find_rank(group=dist.group.WORLD) == (0, 1)  # said outright


def test_local_world_size(launcher: pytest.MonkeyPatch) -> None:
    """What the launcher says, or one."""
    assert ranks.local_world_size() == 1
    for said, meant in (("4", 4), ("0", 1), ("x", 1)):
        launcher.setenv("LOCAL_WORLD_SIZE", said)
        assert ranks.local_world_size() == meant


def test_the_rank_is_asked_for_when_an_iteration_begins(launcher: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C3: A data set that is made before the launcher or a group is there still has its part only."""
    for number in range(4):
        (tmp_path / str(number)).touch()
    files = VolumeDataset(tmp_path)
    assert len(files) == len(list(files)) == 4
    launcher.setenv("RANK", "1")
    launcher.setenv("WORLD_SIZE", "2")
    assert len(files) == 2
    assert [os.path.basename(path) for path in files] == ["1", "3"]
    assert len(VolumeDataset(tmp_path, shard=False)) == 4


def _of_two(rank: int, store: str, directory: str, pickled: bytes, answers: Any) -> None:
    """One of two ranks, which list together: rank 1 sees what rank 0 did.

    `pickled`: a data set from the process that began the ranks, which is no rank.
    """
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    try:
        files = VolumeDataset(directory, shuffle=True)
        mine = [os.path.basename(path) for path in files]
        given: Any = torch.utils.data.DataLoader(pickle.loads(pickled), None, num_workers=1)
        mine_too = [os.path.basename(path) for path in given]
        raised = ""
        try:
            VolumeDataset(directory if rank else f"{directory}/missing")
        except FileNotFoundError as error:
            raised = str(error)
        alone = dist.new_group([0])
        try:
            member = len(VolumeDataset(directory, process_group=alone)) if rank == 0 else -1
            if rank == 1:
                VolumeDataset(directory, process_group=alone)
        except RankUnknown:
            member = 0
        answers.put((rank, mine, mine_too, raised, member))
    finally:
        dist.destroy_process_group()


def test_two_ranks_list_once(tmp_path: Path) -> None:
    """C5: Rank 0 lists for both, and its error is everybody's; a group of some ranks counts for these alone.

    A data set that came from the process that began the ranks, and its workers, know the rank as well.
    """
    (tmp_path / "data").mkdir()
    for number in range(6):
        (tmp_path / "data" / str(number)).touch()
    data = str(tmp_path / "data")
    pickled = pickle.dumps(VolumeDataset(data, shuffle=True))
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    both = [
        context.Process(target=_of_two, args=(rank, tmp_path / "store", data, pickled, answers))
        for rank in range(2)
    ]
    for one in both:
        one.start()
    said = sorted(answers.get(timeout=60) for _ in both)
    for one in both:
        one.join(60)
    assert [one.exitcode for one in both] == [0, 0]
    assert sorted(said[0][1] + said[1][1]) == list("012345") and len(said[0][1]) == 3
    assert [each[2] for each in said] == [each[1] for each in said]
    assert "missing" in said[0][3] and said[0][3] == said[1][3]
    assert (said[0][4], said[1][4]) == (6, 0)


# -- what shards once more ---------------------------------------------------------


def _wrapper(name: str, module: str) -> Callable[[Any], Any]:
    """A class that does what Accelerate's does: iterate the data set in its own `__iter__`."""

    class Wrapper:
        def __init__(self, dataset: Any) -> None:
            self.dataset = dataset

        def __iter__(self) -> Iterator[Any]:
            yield from iter(self.dataset)

    Wrapper.__name__, Wrapper.__module__ = name, module
    return Wrapper


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("IterableDatasetShard", "accelerate.data_loader"),
        ("DataLoaderDispatcher", "accelerate.data_loader"),
        ("IterableDatasetShard", "transformers.trainer_pt_utils"),
    ],
)
def test_resharding_is_refused(tmp_path: Path, name: str, module: str) -> None:
    """C3: Where a wrapper would divide once more, iterating fails; not without shard or with one rank."""
    for number in range(4):
        (tmp_path / str(number)).touch()
    wrap = _wrapper(name, module)
    with pytest.raises(AlreadySharded, match="shard=False"):
        list(wrap(VolumeDataset(tmp_path, rank=0, world_size=2)))
    assert len(list(wrap(VolumeDataset(tmp_path, shard=False)))) == 4
    assert len(list(wrap(VolumeDataset(tmp_path)))) == 4
    other = _wrapper(name, "my.own")
    assert len(list(other(VolumeDataset(tmp_path, rank=0, world_size=2)))) == 2
