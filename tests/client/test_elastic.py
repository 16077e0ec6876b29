"""The elastic matrix: a position saved on any ranks and workers is gone on from on any other.

Ranks and workers are {1, 2, 3, 4} x {0, 1, 2, 3}, the position is taken at five places, of which one is the
epoch's end, and resumed on each of the others: with simulated workers all 1280 cases, with real ones a
sample, and in `make test-all` all of them.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from volfs_client import DataLoader, VolumeDataset

from tests.client.loading import (
    Recorder,
    Steps,
    loaders,
    make_files,
    reference,
    simulate_workers,
    together,
)

#: Not a multiple of the width, so that the last of five steps is padded.
_TOTAL = 53
_WIDTH = 12  # files a step, for all ranks together
_PLACES = (0, 1, 2, 4, 5)  # steps after which the position is taken; 5 is the epoch's end
_SEED = 11
_GRIDS = list(itertools.product((1, 2, 3, 4), (0, 1, 2, 3)))

Grid = tuple[int, int]
State = dict[str, Any]


class Cluster:
    """All ranks of each grid, in one process, each with its loader; used again and again."""

    def __init__(self, directory: Path, recorder: Recorder) -> None:
        self.recorder = recorder
        self._directory = directory
        self._made: dict[Grid, list[DataLoader]] = {}

    def ranks(self, grid: Grid) -> list[DataLoader]:
        """The loaders of the grid's ranks."""
        if grid not in self._made:
            world, workers = grid
            files = [
                VolumeDataset(
                    self._directory,
                    shuffle=True,
                    seed=_SEED,
                    rank=rank,
                    world_size=world,
                    transform=self.recorder,
                )
                for rank in range(world)
            ]
            options = {"multiprocessing_context": "fork"} if workers else {}
            self._made[grid] = loaders(files, _WIDTH // world, workers, **options)
        return self._made[grid]

    def run(self, grid: Grid, state: State, steps: int | None = None) -> tuple[Steps, State]:
        """Go on from a position on all ranks; the steps, and the position then, on which all agree."""
        ranks = self.ranks(grid)
        for rank in ranks:
            rank.load_state_dict(state)
        done = together(ranks, steps)
        states = [json.dumps(rank.state_dict()) for rank in ranks]
        assert len(set(states)) == 1, "ranks are at different positions"
        loaded: State = json.loads(states[0])
        return done, loaded


def check(base: Path, cases: Iterable[tuple[Grid, int, Grid]], *, real: bool) -> int:
    """Save on one grid, resume on another: the same steps as without, and no skipped file opened."""
    directory = make_files(base / "files", _TOTAL)
    resumes = Cluster(directory, Recorder(base / "resumed" if real else None))
    begin = {"version": 1, "epoch": 3, "consumed": 0, "total": _TOTAL, "seed": _SEED}
    begin |= {"taken": 0, "grid": ""}
    begin["fingerprint"] = VolumeDataset(directory).fingerprint
    epochs = {epoch: reference(_TOTAL, _SEED, epoch, _WIDTH) for epoch in (3, 4)}
    whole, count = epochs[3], 0
    for saving, of_grid in itertools.groupby(cases, key=lambda case: case[0]):
        # Workers that are left early still open files: they note it elsewhere, and end with these loaders.
        saves = Cluster(directory, Recorder(base / "saved" if real else None))
        for place, group in itertools.groupby(of_grid, key=lambda case: case[1]):
            before, state = saves.run(saving, begin, place)
            assert before == whole[:place], (saving, place)
            at_end = place == len(whole)
            expected = epochs[4] if at_end else whole[place:]
            for _, _, resuming in group:
                after, end = resumes.run(resuming, state)
                assert after == expected, (saving, place, resuming)
                opened = sorted(itertools.chain(*expected))
                assert resumes.recorder.take() == opened, (saving, place, resuming)
                assert (end["epoch"], end["consumed"]) == (5 if at_end else 4, 0)
                count += 1
    return count


_MATRIX = [(saving, place, resuming) for saving in _GRIDS for place in _PLACES for resuming in _GRIDS]


def test_all_grids_resume_on_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole matrix with simulated workers: global batches, equal steps, files opened, positions after."""
    simulate_workers(monkeypatch)
    assert check(tmp_path, _MATRIX, real=False) == 16 * 5 * 16


_SAMPLE = [
    ((2, 2), 2, (3, 1)), ((2, 2), 2, (1, 0)), ((2, 2), 5, (1, 2)), ((1, 0), 1, (2, 2)), ((3, 1), 4, (2, 2)),
]  # fmt: skip


def test_a_sample_with_real_workers(tmp_path: Path) -> None:
    """C9: Worker processes that live on do as the simulated ones."""
    assert check(tmp_path, _SAMPLE, real=True) == len(_SAMPLE)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_all_grids_resume_on_all_with_real_workers(tmp_path: Path) -> None:
    """C9: The whole matrix with worker processes."""
    assert check(tmp_path, _MATRIX, real=True) == 16 * 5 * 16


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_another_batch_size_goes_on_in_the_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: Any
) -> None:
    """C9: Where the width of a step changes too, the files of the epoch still come once, in its order."""
    simulate_workers(monkeypatch)
    directory = make_files(tmp_path / "files", _TOTAL)
    order = [file for step in reference(_TOTAL, 0, 0, 1) for file in step]
    for (world, batch, steps), (then, size) in itertools.product(
        [(1, 5, 3), (2, 4, 2), (4, 3, 1)], [(1, 7), (2, 2), (3, 5), (4, 1)]
    ):
        before, after = (
            loaders(
                [
                    VolumeDataset(directory, shuffle=True, tail=tail, rank=rank, world_size=many,
                                  transform=Recorder())
                    for rank in range(many)
                ],
                each,
                2,
            )
            for many, each in ((world, batch), (then, size))
        )  # fmt: skip
        seen = [file for step in together(before, steps) for file in step]
        for rank in after:
            rank.load_state_dict(before[0].state_dict())
        seen += [file for step in together(after) for file in step]
        if tail == "drop":
            assert seen == order[: len(seen)] and len(order) - len(seen) < then * size
        else:
            assert seen[:_TOTAL] == order and len(seen) - _TOTAL < then * size
