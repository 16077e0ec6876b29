"""The ranks that save and load together, with a process group that nobody else uses meanwhile.

Collectives of a save run in the background, while the training's own run in the foreground: in one group
they would take each other's messages and wait forever. Hence a group of the library's own, over gloo,
as all that it carries are small Python objects.

It is made only for all ranks of the job. For some of them torch would need the others' help, or names the
group after what each rank did before, and ranks that did not do the same never meet
(`use_local_synchronization`); a group that is given is therefore used as it is.

*Concurrency:* the thread that saves or loads; the background save uses the group only in between.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed as dist

from volfs_client.ranks import share

__all__ = ["Ranks"]

T = TypeVar("T")


class Ranks:
    """Those of the process group that is given, else all ranks, or this process alone without any."""

    def __init__(self, process_group: Any = None) -> None:
        self._given = process_group
        self._own: Any = None

    @property
    def group(self) -> Any:
        """The group, None without torch.distributed. Our own is made at first use, by all ranks together."""
        if self._given is not None:
            return self._given
        if self._own is None and dist.is_available() and dist.is_initialized():
            self._own = dist.new_group(backend="gloo")
        return self._own

    @property
    def is_coordinator(self) -> bool:
        """Whether this is the rank that decides."""
        group = self.group
        return group is None or dist.get_rank(group) == 0

    def decide(self, decision: Callable[[], T]) -> T:
        """What the coordinator decided, on all ranks; an error of it is raised on all ranks."""
        return share(decision, self.group)

    def close(self) -> None:
        """Give up the group, if it is our own."""
        if self._own is not None and dist.is_initialized():
            dist.destroy_process_group(self._own)
        self._own = None
