"""What tests of loaders share: files, transforms that a spawned worker can import, simulated workers.

A simulated worker is an iterator of its own in this process, for which `get_worker_info` answers as in a
worker, and from which batches are taken in turn as PyTorch's loader does. Hundreds of grids are tried so;
that real workers do the same is shown by a sample.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.utils.data
from volfs_client import DataLoader, LocalPath, VolumeDataset
from volfs_client.order import permutation

__all__ = [
    "Recorder",
    "Steps",
    "loaders",
    "make_files",
    "number",
    "reference",
    "simulate_workers",
    "together",
]

#: The batches of all ranks in each step, put together.
Steps = list[list[int]]


def make_files(directory: Path, count: int) -> Path:
    """Files whose names are numbers."""
    directory.mkdir(exist_ok=True)
    for each in range(count):
        (directory / f"{each:04}").write_bytes(b"x" * each)
    return directory


def number(path: LocalPath) -> int:
    """The number in a file's name, out of its source."""
    return int(os.path.basename(path.source))


class Recorder:
    """Opens the file, answers its number, and notes that: in a file, from any process, or in memory."""

    def __init__(self, notes: Path | None = None) -> None:
        self._notes = notes
        self._memory: list[int] = []
        if notes is not None:
            notes.touch()

    def __call__(self, path: LocalPath) -> int:
        with open(path, "rb", buffering=0) as file:
            found = len(file.read())
        if self._notes is None:
            self._memory.append(found)
        else:
            with self._notes.open("a") as notes:  # O_APPEND: lines of several processes do not mix
                notes.write(f"{found}\n")
        return found

    def take(self) -> list[int]:
        """What was opened since the last time, sorted."""
        opened, self._memory = sorted(self._memory), []
        if self._notes is not None:
            opened = sorted(map(int, self._notes.read_text().split()))
            self._notes.write_text("")
        return opened


def simulate_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's loader have simulated workers."""
    info: list[Any] = [None]
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: info[0])
    monkeypatch.setattr(torch.utils.data.DataLoader, "check_worker_number_rationality", lambda self: None)

    def begin(loader: Any) -> Iterator[Any]:
        count = loader.num_workers
        workers = []
        for worker in range(max(1, count)):
            info[0] = SimpleNamespace(id=worker, num_workers=count) if count else None
            workers.append(iter(_forked(loader.dataset) if count else loader.dataset))
        info[0] = None
        return _in_turn(workers, loader.batch_size, loader.collate_fn)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", begin)


def _forked(files: VolumeDataset) -> VolumeDataset:
    """What a worker has: objects of its own, and the shared memory of all."""
    own = copy.copy(files)
    own.progress = copy.copy(files.progress)
    return own


def _in_turn(workers: list[Iterator[Any]], size: int, collate: Any) -> Iterator[Any]:
    while workers:
        for worker in list(workers):
            batch = list(islice(worker, size))
            if batch:
                yield collate(batch)
            else:
                workers.remove(worker)


def reference(total: int, seed: int, epoch: int, width: int) -> Steps:
    """What each step of an epoch is, told from the order alone."""
    order = list(permutation(total, seed, epoch))
    padded = order + order[: -total % width]
    return [padded[at : at + width] for at in range(0, total, width)]


def together(ranks: list[DataLoader], steps: int | None = None) -> Steps:
    """Run the loaders of all ranks side by side for so many steps, or to the end, which must be the same."""
    running = [iter(each) for each in ranks]
    done: Steps = []
    while steps is None or len(done) < steps:
        batches = [next(each, None) for each in running]
        if all(batch is None for batch in batches):
            break
        assert all(batch is not None for batch in batches), "ranks have unequal steps"
        done.append([int(item) for batch in batches for item in batch])
    return done


def loaders(files: list[VolumeDataset], batch: int, workers: int, **options: Any) -> list[DataLoader]:
    """One loader a rank."""
    return [DataLoader(each, batch, num_workers=workers, **options) for each in files]
