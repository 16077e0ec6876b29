"""Positions as they are saved: what is in them, and when one may be loaded.

A saved position is a dict of plain numbers and strings that is the same on every rank: a checkpoint that
keeps one value for each key, or one of all ranks' files, loses nothing.

    version      of this format
    epoch        counted from 0
    consumed     places of the epoch's order that all ranks have consumed
    total        files
    seed         of the order; None without shuffle
    fingerprint  of the listing (`listing`)
    taken, grid  not 0 and empty only for a data set that was left within a step, or in a worker: files that
                 it has handed out since `consumed`, and "world batch workers worker", which must be the same

All keys are always there: a distributed checkpoint loads those that it finds in the state as it is.

Whatever is not here may be another one: ranks, workers, batch size, tail, paths, transforms.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Final, Literal, NamedTuple, Protocol, runtime_checkable

from volfs_client.errors import FilesChanged, StateMismatch

__all__ = ["Checkpointable", "Identity", "OnChange", "Position"]

OnChange = Literal["error", "warn"]

_VERSION: Final = 1


@runtime_checkable
class Checkpointable(Protocol):
    """What has a state to save: the two methods that `torch.distributed.checkpoint` looks for as well."""

    def state_dict(self) -> dict[str, Any]:
        """The state, as plain values and tensors."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state."""
        ...


class Position(NamedTuple):
    """A place in the order of an epoch. See the module."""

    epoch: int
    consumed: int
    taken: int = 0
    grid: str = ""


class Identity(NamedTuple):
    """What a position is a position of."""

    total: int
    seed: int | None
    fingerprint: str

    def save(self, at: Position) -> dict[str, Any]:
        """The state dict of a position."""
        state: dict[str, Any] = {"version": _VERSION, "epoch": at.epoch, "consumed": at.consumed}
        return state | self._asdict() | {"taken": at.taken, "grid": at.grid if at.taken else ""}

    def load(self, state: Mapping[str, Any], on_change: OnChange) -> Position:
        """The position in a state dict.

        Raises StateMismatch if it belongs to another order, FilesChanged if to other files; with
        `on_change="warn"` that is a warning.
        """
        if state.get("version") != _VERSION:
            raise StateMismatch(
                f"a position of format {state.get('version')!r}, not {_VERSION}: it was not saved by this "
                "version of volfs_client, or is no position of a loader"
            )
        try:
            epoch, consumed, taken = (int(state[name]) for name in ("epoch", "consumed", "taken"))
            at = Position(epoch, consumed, taken, str(state["grid"]))
            seed, total, fingerprint = state["seed"], int(state["total"]), state["fingerprint"]
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatch(f"a position that is damaged: {error!r}") from error
        if min(at.epoch, at.consumed, at.taken) < 0:
            raise StateMismatch("a position that is damaged: a negative number")
        if seed != self.seed:
            raise StateMismatch(
                f"the position is in an order with {_named(seed)}, and this one has {_named(self.seed)}: "
                "make the data set with the same shuffle and seed"
            )
        if (total, fingerprint) == (self.total, self.fingerprint):
            return at
        message = (
            f"the files are not those that the position is of: there were {total}, now there are "
            f"{self.total}, or names or sizes changed; on_change='warn' goes on all the same, and may then "
            "skip some or see some twice"
        )
        if on_change == "error":
            raise FilesChanged(message)
        warnings.warn(message, stacklevel=4)
        return at._replace(consumed=min(at.consumed, self.total))


def _named(seed: object) -> str:
    return "no shuffle" if seed is None else f"seed {seed}"
