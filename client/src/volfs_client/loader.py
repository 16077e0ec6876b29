"""The loader: PyTorch's, with defaults for files, and a position that fits any number of ranks and workers.

Batches are counted when the caller gets them: workers run ahead, and what they have made is not consumed.
The order of batches is the data set's (`order`), because worker k makes the steps k, k + K ... and PyTorch's
loader takes them in turn. So the position after n batches is known without asking a worker, and a resumed
iteration opens no file that it skips.

*Concurrency:* the thread that iterates. Nothing is started before PyTorch starts its workers.

*Invariants:* one iteration of a loader counts at a time; a pass that ends has had each of its steps.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from volfs_client import ranks
from volfs_client.dataset import VolumeDataset
from volfs_client.epochs import Progress
from volfs_client.errors import StateMismatch
from volfs_client.order import Pass
from volfs_client.stateful import Position
from volfs_client.timing import BatchTiming

__all__ = ["DataLoader"]

#: Workers wait for files more than they compute, but each has an interpreter and PyTorch in memory.
_MOST_WORKERS: Final = 8

#: Batches that each worker is ahead: files take unequal times, and more than PyTorch's 2 evens that out.
_BATCHES_AHEAD: Final = 4

#: A data set around a data set around a data set: deeper ones are not looked for.
_DEPTH: Final = 4

#: What PyTorch's loader takes and this one cannot keep its promise with.
_REFUSED: Final = {
    "shuffle": "shuffle=True is the data set's",
    "sampler": "the order is the data set's",
    "batch_sampler": "the order is the data set's: give batch_size",
    "drop_last": "give the data set tail='drop'; with 'pad' all batches are full",
}


class DataLoader(torch.utils.data.DataLoader[Any]):
    """Batches of a `VolumeDataset`, or of an IterableDataset that has one as an attribute and makes one item
    of each of its paths.

    dataset             the data set
    batch_size          items a batch on each rank; None: items one by one
    num_workers         by default as many as this process has CPUs for, at most 8
    pin_memory          by default where there is an accelerator
    persistent_workers  by default True: workers live on from epoch to epoch
    prefetch_factor     batches that each worker makes ahead, by default 4
    on_batch            called with a `BatchTiming` when the next batch is asked for

    All else is PyTorch's. `state_dict` is the position after the last batch that was handed out, and the same
    on all ranks. Loaded on any number of ranks, workers and any batch size, the next iteration goes on
    there in the same order. An iteration that was left early has its position until the next
    one begins, which is of the next epoch.
    """

    def __init__(
        self,
        dataset: IterableDataset[Any],
        batch_size: int | None = 1,
        *,
        num_workers: int | None = None,
        pin_memory: bool | None = None,
        persistent_workers: bool | None = None,
        prefetch_factor: int | None = None,
        on_batch: Callable[[BatchTiming], None] | None = None,
        **options: Any,
    ) -> None:
        for name, instead in _REFUSED.items():
            if options.get(name):
                raise ValueError(f"{name} is not for this loader: {instead}")
        if options.get("in_order") is False:
            raise ValueError("in_order=False is not for this loader: its position is one in the order")
        files = _source(dataset)
        if batch_size is not None and files.batch_size not in (None, batch_size):
            raise ValueError(
                f"the data set has batch_size={files.batch_size} and the loader {batch_size}: give one"
            )
        if num_workers is None:
            cpus = len(os.sched_getaffinity(0)) // ranks.local_world_size()
            num_workers = max(1, min(_MOST_WORKERS, cpus))
        if pin_memory is None:
            found = torch.accelerator.current_accelerator(check_available=True)
            pin_memory = found is not None and found.type != "mps"
        super().__init__(
            dataset,
            batch_size,
            num_workers=num_workers,
            pin_memory=pin_memory,
            persistent_workers=num_workers > 0 if persistent_workers is None else persistent_workers,
            prefetch_factor=_BATCHES_AHEAD if prefetch_factor is None and num_workers else prefetch_factor,
            **options,
        )
        self._files = files
        self._on_batch = on_batch
        self._valid = 0

    @property
    def epoch(self) -> int:
        """The epoch that is under way, or the one that the next iteration is of."""
        under_way = self._files.progress.iterator
        return under_way.over.epoch if isinstance(under_way, _Batches) else self._files.epoch

    @property
    def valid(self) -> int:
        """How many items of the batch that was handed out last are no padding; they come first."""
        return self._valid

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch."""
        self._files.set_epoch(epoch)

    def __len__(self) -> int:
        """Batches of the iteration that is under way, or else of the next one: what is left of the epoch."""
        under_way = self._files.progress.iterator
        if isinstance(under_way, _Batches):
            return under_way.over.steps
        return self._files.next_pass(self.batch_size or 1).steps

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was handed out: the same on all ranks."""
        return self._files.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iteration goes on from the position.

        Raises StateMismatch while an iteration is under way or if it is of another order, FilesChanged if
        it is of other files.
        """
        self._files.load_state_dict(state_dict)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # all that PyTorch's own is used for
        progress = self._files.progress
        at = progress.next
        if at.taken:
            raise StateMismatch(
                "the position was saved within a step or in a worker, by the data set itself: only the same "
                "iteration can go on there; what this loader saves fits any ranks, workers and batch size"
            )
        this = self._files.next_pass(self.batch_size or 1)
        publication = progress.publish(this)
        try:
            inner = super().__iter__()
        except BaseException:
            progress.withdraw(publication)
            raise
        progress.take()
        batches = _Batches(this, inner, progress, publication, self._hand_over, self._on_batch)
        progress.follow(batches)
        return batches

    def _hand_over(self, this: Pass, step: int) -> None:
        """A batch goes to the caller: it is consumed."""
        self._valid = this.valid(step)
        done = step + 1
        over = done >= this.steps
        self._files.progress.reach(None if over else Position(this.epoch, this.consumed(done)))


class _Batches(Iterator[Any]):
    """One iteration over a loader. `over`: the pass that it goes through."""

    def __init__(
        self,
        over: Pass,
        inner: Iterator[Any],
        progress: Progress,
        publication: int,
        hand_over: Callable[[Pass, int], None],
        on_batch: Callable[[BatchTiming], None] | None,
    ) -> None:
        self.over = over
        self._inner = inner
        self._progress = progress
        self._publication = publication
        self._pid = os.getpid()
        self._hand_over = hand_over
        self._on_batch = on_batch
        self._step = 0  # batches handed out
        self._ended = False
        self._handed_s = 0.0  # when the last one was, and how long it was waited for
        self._waited_s = 0.0

    def __len__(self) -> int:
        return self.over.steps

    def __next__(self) -> Any:
        asked_s = time.perf_counter()
        self._tell(asked_s)
        if self._ended:
            raise StopIteration
        if self._progress.iterator is not self:
            self._ended = True
            if self._step == self.over.steps:
                raise StopIteration
            raise RuntimeError("another iteration of the same data set has begun, and took this one's place")
        try:
            batch = next(self._inner)
        except StopIteration:
            self._end()
            if self._step != self.over.steps:
                raise RuntimeError(self._miscounted(f"{self._step}")) from None
            raise
        except BaseException:
            self._end()  # the worker that failed makes no more batches, and the rest would be out of order
            raise
        if self._step == self.over.steps:
            self._end()
            raise RuntimeError(self._miscounted("more"))
        self._hand_over(self.over, self._step)
        self._step += 1
        self._handed_s = time.perf_counter()
        self._waited_s = self._handed_s - asked_s
        return batch

    def __del__(self) -> None:
        if os.getpid() == self._pid:  # a forked worker has a copy, and what it would write into is shared
            self._progress.withdraw(self._publication)

    def _end(self) -> None:
        self._ended = True
        self._progress.end()
        self._progress.withdraw(self._publication)
        if not self.over.steps:
            self._progress.reach(None)

    def _tell(self, now_s: float) -> None:
        """Say how the last batch went, now that its work is done."""
        if self._on_batch is not None and self._handed_s:
            step = self._step - 1
            computed_s = now_s - self._handed_s
            self._handed_s = 0.0
            timing = BatchTiming(self.over.epoch, step, self.over.valid(step), self._waited_s, computed_s)
            self._on_batch(timing)

    def _miscounted(self, came: str) -> str:
        return (
            f"{self.over.steps} batches were due and {came} came: a data set around a VolumeDataset makes "
            "one item of each of its paths, or positions would be wrong"
        )


def _source(dataset: object) -> VolumeDataset:
    """The data set of files in a data set. TypeError unless there is exactly one."""
    found = _sources(dataset, _DEPTH)
    if len(found) != 1:
        raise TypeError(
            f"this loader is for a VolumeDataset, or an IterableDataset that has one as an attribute; "
            f"{type(dataset).__name__} has {len(found)}: use torch.utils.data.DataLoader"
        )
    return found[0]


def _sources(dataset: object, depth: int) -> list[VolumeDataset]:
    if isinstance(dataset, VolumeDataset):
        return [dataset]
    if not isinstance(dataset, IterableDataset) or not depth:
        return []
    inner = {id(each): each for each in vars(dataset).values()}
    return [one for each in inner.values() for one in _sources(each, depth - 1)]
