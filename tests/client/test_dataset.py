"""The data set by itself: epochs, positions, tails, items, and what it says when something is wrong."""

from __future__ import annotations

import copy
import itertools
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
import torch.utils.data
import volfs_client
from volfs_client import (
    Checkpointable,
    FilesChanged,
    LocalFile,
    LocalPath,
    NoFiles,
    StateMismatch,
    TooFewFiles,
    VolumeDataset,
)

from tests.client.loading import make_files, number, reference, simulate_workers


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Ten files."""
    return make_files(tmp_path / "files", 10)


def epoch_of(seed: int, epoch: int) -> list[int]:
    """The order of the ten."""
    return [file for step in reference(10, seed, epoch, 1) for file in step]


def test_an_epoch_begun_is_an_epoch_spent(directory: Path) -> None:
    """C4: Full passes and one left early go on to the next epoch; `set_epoch` says another."""
    files = VolumeDataset(directory, shuffle=True, seed=4, transform=number)
    assert files.epoch == 0
    assert list(files) == epoch_of(4, 0)
    assert list(files) == epoch_of(4, 1)
    assert list(itertools.islice(files, 3)) == epoch_of(4, 2)[:3]
    assert files.epoch == 3 and list(files) == epoch_of(4, 3)
    files.set_epoch(1)
    assert list(files) == epoch_of(4, 1) and files.epoch == 2
    with pytest.raises(ValueError, match="-1"):
        files.set_epoch(-1)


def test_without_shuffle_the_order_is_the_listings(directory: Path) -> None:
    """C1: Each epoch in the order of the paths."""
    files = VolumeDataset(directory)
    assert [list(files), list(files)] == [list(files.files)] * 2
    assert files.files == sorted(map(str, directory.iterdir())) and files.total == 10


def test_a_position_is_where_it_was_left(directory: Path) -> None:
    """The state after any number of items goes on there; at the end it is the beginning of the next epoch."""
    for count in range(11):
        files = VolumeDataset(directory, shuffle=True, batch_size=3, transform=number)
        running = iter(files)
        seen = list(itertools.islice(running, count))
        state = files.state_dict()
        del running
        assert files.state_dict() == state  # until the next iteration begins, though it was left
        other = VolumeDataset(directory, shuffle=True, batch_size=3, transform=number)
        other.load_state_dict(pickle.loads(pickle.dumps(state)))
        assert len(other) == 12 - count
        seen += list(other)
        assert seen == epoch_of(0, 0) + epoch_of(0, 0)[:2], count
        assert (other.epoch, other.state_dict()["epoch"]) == (1, 1)


def test_at_the_end_it_is_the_next_epochs_beginning(directory: Path) -> None:
    """C9: The state after the last item, whether the iterator was asked once more or not."""
    files = VolumeDataset(directory, transform=number)
    running = iter(files)
    assert len(list(itertools.islice(running, 10))) == 10
    last = files.state_dict()
    assert next(running, None) is None
    assert files.state_dict() == last and (last["epoch"], last["consumed"]) == (1, 0)


def test_a_loaded_position_survives_set_epoch_of_its_epoch(directory: Path) -> None:
    """Loops that call `set_epoch` first go on in the epoch; another epoch begins at its beginning."""
    files = VolumeDataset(directory, transform=number)
    state = files.state_dict() | {"epoch": 2, "consumed": 7}
    for epoch, left in ((2, [7, 8, 9]), (3, list(range(10)))):
        files.load_state_dict(state)
        files.set_epoch(epoch)
        assert list(files) == left
    assert isinstance(files, Checkpointable) and not isinstance(directory, Checkpointable)


def test_a_position_within_a_step_fits_the_same_grid_only(directory: Path) -> None:
    """It cannot be said in places that all have consumed: another batch size is refused, naming both."""
    files = VolumeDataset(directory, rank=0, world_size=2, batch_size=2)
    running = iter(files)
    next(running)
    state = files.state_dict()
    assert state["grid"] == "2 2 1 0"
    other = VolumeDataset(directory, rank=0, world_size=2, batch_size=3)
    other.load_state_dict(state)
    with pytest.raises(StateMismatch, match=r"2 2 1 0.*2 3 1 0"):
        iter(other)


def test_positions_that_do_not_belong(directory: Path, tmp_path: Path) -> None:
    """C10: Another seed, another format, damage: StateMismatch. Other files: FilesChanged, or a warning."""
    files = VolumeDataset(directory, shuffle=True, seed=1)
    state = files.state_dict() | {"consumed": 9}
    for other in (VolumeDataset(directory, shuffle=True, seed=2), VolumeDataset(directory)):
        with pytest.raises(StateMismatch, match="seed"):
            other.load_state_dict(state)
    for damage in ({"version": 2}, {"epoch": "x"}, {"consumed": -1}, {"total": None}):
        with pytest.raises(StateMismatch):
            files.load_state_dict(state | damage)
    with pytest.raises(StateMismatch):
        files.load_state_dict({})
    (directory / "0003").write_text("longer than before")
    changed = VolumeDataset(directory, shuffle=True, seed=1)
    with pytest.raises(FilesChanged, match="on_change"):
        changed.load_state_dict(state)
    for name in range(5):
        (directory / f"{name:04}").unlink()
    lenient = VolumeDataset(directory, shuffle=True, seed=1, on_change="warn")
    with pytest.warns(UserWarning, match="there were 10, now there are 5"):
        lenient.load_state_dict(state)
    assert lenient.state_dict()["consumed"] == 5
    assert list(lenient) == [] and len(list(lenient)) == 5


def test_a_position_is_not_loaded_under_an_iteration(directory: Path) -> None:
    """C10: It would not be heeded: StateMismatch, until the iterator ends or goes."""
    files = VolumeDataset(directory)
    state = files.state_dict()
    running = iter(files)
    with pytest.raises(StateMismatch, match="under way"):
        files.load_state_dict(state)
    next(running)
    del running
    files.load_state_dict(state)
    running = iter(files)
    assert len(list(running)) == 10
    files.load_state_dict(state)


@pytest.mark.parametrize(
    ("tail", "world", "batch", "length"),
    [("pad", 2, 3, 6), ("pad", 4, 8, 8), ("drop", 2, 3, 3), ("drop", 1, 10, 10), ("error", 2, 5, 5)],
)
def test_length_is_exact(directory: Path, tail: Any, world: int, batch: int, length: int) -> None:
    """C2: What `len` says comes, on each rank the same, with fewer files than ranks and batches as well."""
    for rank in range(world):
        files = VolumeDataset(directory, tail=tail, rank=rank, world_size=world, batch_size=batch)
        assert len(files) == length == len(list(files))


def test_files_that_fill_no_step(directory: Path) -> None:
    """C2: `drop` that would drop all, and `error` where steps are not even, say it with the numbers."""
    with pytest.raises(TooFewFiles, match="10 files do not fill one step of 12"):
        iter(VolumeDataset(directory, tail="drop", rank=0, world_size=3, batch_size=4))
    with pytest.raises(TooFewFiles, match="steps of 4"):
        len(VolumeDataset(directory, tail="error", batch_size=4))


def test_arguments_that_cannot_be(directory: Path, tmp_path: Path) -> None:
    """Said when the data set is made."""
    for wrong in ({"tail": "wrap"}, {"on_change": "ignore"}, {"batch_size": 0}, {"prefetch": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            VolumeDataset(directory, **wrong)  # type: ignore[arg-type]
    with pytest.raises(NoFiles):
        VolumeDataset(directory, pattern="*.jpg")
    with pytest.raises(FileNotFoundError):
        VolumeDataset(tmp_path / "missing")


def test_items_are_paths_that_know_their_source(directory: Path) -> None:
    """As str, or as pathlib.Path; collated, copied and pickled they stay so."""
    item = next(iter(VolumeDataset(directory)))
    path = next(iter(VolumeDataset([str(directory / "0003")], as_path=True)))
    assert isinstance(item, LocalPath) and isinstance(path, LocalFile) and isinstance(path, Path)
    assert (item, item.source) == (str(directory / "0000"), str(directory / "0000"))
    assert (path, path.source, path.read_bytes()) == (directory / "0003", directory / "0003", b"xxx")
    handed = LocalPath("/cache/17", "/data/cat.jpg")
    for made in (handed, LocalFile.of(handed)):
        for again in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
            assert type(again) is type(made) and again == made
            assert str(again.source) == "/data/cat.jpg"
    assert LocalFile.of(handed).parent.source == Path("/cache")
    assert torch.utils.data.default_collate([handed, item]) == ["/cache/17", item]


def test_a_rest_that_fills_no_step_is_skipped(directory: Path) -> None:
    """With `drop`, a position so close to the end that nothing is left: nothing, then the next epoch."""
    files = VolumeDataset(directory, tail="drop", batch_size=4)
    files.load_state_dict(files.state_dict() | {"consumed": 8})
    assert list(files) == []
    assert files.state_dict()["epoch"] == 1 and len(list(files)) == 8


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_distributed_checkpoint_holds_all_of_a_position(directory: Path, tmp_path: Path) -> None:
    """C11: Also what a new data set's own state has none of: the place within a step."""
    files = VolumeDataset(directory, batch_size=4, transform=number)
    running = iter(files)
    assert [next(running) for _ in range(6)] == list(range(6))
    dcp.save({"files": files}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    resumed = VolumeDataset(directory, batch_size=4, transform=number)
    dcp.load({"files": resumed}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    assert list(resumed) == [6, 7, 8, 9, 0, 1]


def test_a_copy_has_an_epoch_of_its_own(directory: Path) -> None:
    """Copied and unpickled in the same process, a data set is another one, at the same place."""
    files = VolumeDataset(directory, shuffle=True, transform=number)
    files.set_epoch(3)
    for other in (copy.deepcopy(files), pickle.loads(pickle.dumps(files))):
        assert list(other) == epoch_of(0, 3) and other.epoch == 4
    assert files.epoch == 3


def test_pytorchs_own_loader_keeps_the_order(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same batch size in both, whatever the number of workers; and `len` is right."""
    simulate_workers(monkeypatch)
    for workers in range(4):
        files = VolumeDataset(directory, shuffle=True, batch_size=4, transform=number)
        loader: Any = torch.utils.data.DataLoader(files, 4, num_workers=workers)
        assert [batch.tolist() for batch in loader] == reference(10, 0, 0, 4) and len(loader) == 3
        files.set_epoch(5)
        assert [batch.tolist() for batch in loader] == reference(10, 0, 5, 4)


def test_an_epoch_that_nobody_advances_is_told(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4: Workers that begin the same epoch again warn; not after `set_epoch`, nor without shuffle."""
    simulate_workers(monkeypatch)
    files = VolumeDataset(directory, shuffle=True)
    loader: Any = torch.utils.data.DataLoader(files, 2, num_workers=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(loader)
        files.set_epoch(0)
        list(loader)
        assert caught == []
        list(loader)
    assert ["set_epoch" in str(each.message) for each in caught] == [True]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plain: Any = torch.utils.data.DataLoader(VolumeDataset(directory), 2, num_workers=2)
        for _ in range(2):
            list(plain)


def test_each_worker_has_a_position_of_its_own(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a StatefulDataLoader saves and loads it: by worker, for the same number of workers."""
    simulate_workers(monkeypatch)
    worker: list[Any] = [None]
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: worker[0])

    class Worker:
        id, num_workers = 1, 2

    worker[0] = Worker
    files = VolumeDataset(directory, shuffle=True, batch_size=2, transform=number)
    whole = list(files)
    assert whole == [file for step in reference(10, 0, 0, 2)[1::2] for file in step]
    files = VolumeDataset(directory, shuffle=True, batch_size=2, transform=number)
    running = iter(files)
    seen = list(itertools.islice(running, 3))
    state = files.state_dict()
    other = VolumeDataset(directory, shuffle=True, batch_size=2, transform=number)
    other.load_state_dict(state)
    assert seen + list(other) == whole
    assert list(other) == [file for step in reference(10, 0, 1, 2)[1::2] for file in step]
    Worker.num_workers = 3
    other.load_state_dict(state)
    with pytest.raises(StateMismatch, match=r"volfs_client\.DataLoader"):
        iter(other)


def test_the_reference_products_name_is_an_alias() -> None:
    """A script that is ported by its import finds what it looks for."""
    assert volfs_client.UCVolumeDataset is VolumeDataset


def test_the_listing_is_made_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: Iterating and copying list nothing any more."""
    files = VolumeDataset(directory)
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("listed again"))
    assert len(list(files)) == len(list(pickle.loads(pickle.dumps(files)))) == 10
