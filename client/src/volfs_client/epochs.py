"""Where a data set is: which epoch is next, which pass is under way, how far it has come.

It decides nothing about files or order. One object belongs to one data set. What workers must hear, also
those that live on from epoch to epoch, is in a piece of shared memory without a name, which ends with the
last process that has it, however that ends.

A pass begun is an epoch spent: from then on the next iteration is of the next epoch, whether the pass is
gone through or left early, unless `set_epoch` or a loaded position says otherwise. Until that iteration
begins, the position to save is where the pass was left.

*Concurrency:* only the main process writes, but for LAST, which worker 0 does. Workers read what was
published when they begin a pass, and a pass is published before workers are told to begin one.
"""

from __future__ import annotations

import weakref
from typing import Any, Final, cast

import torch

from volfs_client.errors import StateMismatch
from volfs_client.order import Grid, Pass, Tail
from volfs_client.stateful import Position

__all__ = ["Progress"]

_EPOCH: Final = 0  # of the next pass
_START: Final = 1  # and the place where it begins
_LAST: Final = 2  # the epoch that worker 0 began last without a loader of ours, and one more; 0: none
_SAID: Final = 3  # how often these were set by the user
_PUBLISHED: Final = 4  # which publication the rest is; 0: none
_PASS: Final = slice(5, 10)  # epoch, start, rank, world, batch


class Progress:
    """See the module."""

    def __init__(self) -> None:
        self._slots = _shared(torch.zeros(10, dtype=torch.int64))
        self._reached: Position | None = None
        self._skip: Position | None = None
        self._under_way: weakref.ref[object] | None = None
        self._publications = 0
        self._counted = (-1, 0)  # in a worker: what the user had said, and the epoch of its next pass

    def __getstate__(self) -> dict[str, Any]:
        return {"slots": self._slots}

    def __setstate__(self, state: dict[str, Any]) -> None:
        slots = state["slots"]
        if not slots.is_shared():
            slots[_PUBLISHED] = 0  # a copy, and no worker: the loader leads the one that it was made of
        self._slots = _shared(slots)
        self._reached = self._skip = self._under_way = None
        self._publications = int(self._slots[_PUBLISHED])
        self._counted = (-1, 0)

    @property
    def epoch(self) -> int:
        """Of the next pass."""
        return int(self._slots[_EPOCH])

    @property
    def start(self) -> int:
        """The place where the next pass begins."""
        return int(self._slots[_START])

    @property
    def next(self) -> Position:
        """Where the next pass begins."""
        return self._skip or Position(self.epoch, self.start)

    @property
    def reached(self) -> Position:
        """What to save: how far the last pass has come, or where the next one begins."""
        return self._reached or self.next

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch; the rest of it, if a position in it was loaded."""
        if epoch < 0:
            raise ValueError(f"there is no epoch {epoch}")
        if epoch != self.epoch:
            self._next(epoch, 0)
            self._skip = None
        self._said()

    def load(self, at: Position) -> None:
        """The next pass begins at this position. StateMismatch if one is under way: it would not heed it."""
        if self.iterator is not None:
            raise StateMismatch(
                "an iteration is under way, and would go on where it is: load the position before iter(), or "
                "let the iterator end first"
            )
        self._next(at.epoch, at.consumed)
        self._said()
        self._skip = at if at.taken else None

    def load_in_worker(self, at: Position) -> None:
        """The same for this worker alone: the main process and the others have positions of their own."""
        self._reached, self._skip = None, at

    def take(self) -> Position:
        """Begin a pass in the main process: where it begins. The next one is of the next epoch."""
        at = self.next
        self._next(at.epoch + 1, 0)
        self._skip = None
        self._reached = at
        return at

    def take_in_worker(self, worker: int) -> tuple[Position, bool]:
        """Begin a pass in a worker that no loader of ours leads; whether it is the same epoch once more.

        A worker that lives on counts epochs by itself, and all workers of a loader the same.
        """
        said = int(self._slots[_SAID])
        if self._counted[0] == said and self._skip is None:
            at = Position(self._counted[1], 0)
        else:
            at, self._skip = self.next, None
        self._counted = said, at.epoch + 1
        self._reached = at
        if worker:
            return at, False
        again = int(self._slots[_LAST]) == at.epoch + 1
        self._slots[_LAST] = at.epoch + 1
        return at, again

    def follow(self, iterator: object) -> None:
        """The pass is under way for as long as its iterator lives, or until `end`."""
        self._under_way = weakref.ref(iterator)

    @property
    def iterator(self) -> object | None:
        """What goes through the pass that is under way."""
        return None if self._under_way is None else self._under_way()

    def end(self) -> None:
        """The iterator came to its end."""
        self._under_way = None

    def reach(self, at: Position | None) -> None:
        """The pass has come so far; None: to the end of the epoch."""
        self._reached = at

    def publish(self, this: Pass) -> int:
        """What workers begin from now on is this pass. The number to withdraw it by."""
        grid = this.grid
        self._slots[_PASS] = torch.tensor([this.epoch, this.start, grid.rank, grid.world, grid.batch])
        self._publications += 1
        self._slots[_PUBLISHED] = self._publications
        return self._publications

    def withdraw(self, publication: int) -> None:
        """The loader that published does not lead any more; of no effect when a later one does."""
        if int(self._slots[_PUBLISHED]) == publication:
            self._slots[_PUBLISHED] = 0

    def published(self, total: int, tail: Tail) -> Pass | None:
        """The pass that a loader leads."""
        if not int(self._slots[_PUBLISHED]):
            return None
        epoch, start, rank, world, batch = cast(list[int], self._slots[_PASS].tolist())
        return Pass(total, tail, epoch, start, Grid(rank, world, batch))

    def _said(self) -> None:
        """The user chose where the next pass begins."""
        self._slots[_SAID] += 1
        self._slots[_LAST] = 0
        self._reached = None

    def _next(self, epoch: int, start: int) -> None:
        self._slots[_EPOCH], self._slots[_START] = epoch, start


def _shared(slots: torch.Tensor) -> torch.Tensor:
    moved: torch.Tensor = slots.share_memory_()  # type: ignore[no-untyped-call]
    return moved
