"""In which order an epoch goes through the files, and which of them are whose.

It knows numbers only: files are positions in a listing. This module is pure.

The order is a permutation of all files that depends on the seed and the epoch alone. A step takes
`world * batch` places of it, in order; of these rank r takes `[r * batch, (r + 1) * batch)`, and of the
steps of a rank worker k of K makes those with `step % K == k`, which is the order in which a DataLoader
takes them. So what a step holds depends neither on the number of workers nor, as long as `world * batch`
stays, on the number of ranks, and a position is one number: how many places were consumed by all.

*Invariants:* every rank has the same number of steps, each of `batch` places. In the steps of a pass each
place from `start` on occurs once ("pad", "error"), or all but fewer than one step's at the end do ("drop").
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import Final, Literal

__all__ = ["TAILS", "Grid", "Pass", "Tail", "permutation"]

#: What becomes of the last step when the files do not fill it: filled up from the beginning of the same
#: order, left out, or not accepted.
Tail = Literal["pad", "drop", "error"]
TAILS: Final[tuple[Tail, ...]] = ("pad", "drop", "error")


def permutation(total: int, seed: int, epoch: int) -> Sequence[int]:
    """The numbers below `total` in an order that depends on nothing else, in any process and version.

    Fisher and Yates' shuffle as Durstenfeld gave it (CACM 7, 1964, algorithm 235). Of `random`, only the
    sequence of `Random(int).random()` is promised to stay, so that nothing else of it is used.
    A million takes a second and 4 MB.
    """
    order = array("I", range(total))
    draw = Random(int.from_bytes(sha256(f"{seed} {epoch}".encode()).digest())).random
    for last in range(total - 1, 0, -1):
        other = int(draw() * (last + 1))
        order[last], order[other] = order[other], order[last]
    return order


@dataclass(frozen=True, slots=True)
class Grid:
    """One rank among `world`, each of which takes `batch` files a step."""

    rank: int
    world: int
    batch: int

    @property
    def width(self) -> int:
        """Files that all ranks together take in one step."""
        return self.world * self.batch


@dataclass(frozen=True, slots=True)
class Pass:
    """One way through the rest of an epoch: from place `start` of `total` to the end."""

    total: int
    tail: Tail
    epoch: int
    start: int
    grid: Grid

    @property
    def steps(self) -> int:
        """Steps of each rank."""
        left = max(0, self.total - self.start)
        return left // self.grid.width if self.tail == "drop" else -(-left // self.grid.width)

    @property
    def is_even(self) -> bool:
        """Whether all steps are full without padding."""
        return (self.total - self.start) % self.grid.width == 0

    def consumed(self, steps: int) -> int:
        """Places that all ranks have consumed after so many steps."""
        return min(self.total, self.start + steps * self.grid.width)

    def valid(self, step: int) -> int:
        """How many files of this rank's part of a step are no padding; they come first."""
        return max(0, min(self.grid.batch, self.total - self._first(step)))

    def places(self, worker: int = 0, workers: int = 1) -> Iterator[int]:
        """The places in the order, below `total`, that one worker of this rank takes."""
        for step in range(worker, self.steps, workers):
            first = self._first(step)
            for place in range(first, first + self.grid.batch):
                yield place % self.total

    def _first(self, step: int) -> int:
        return self.start + step * self.grid.width + self.grid.rank * self.grid.batch
