"""Which rank this process is, and what the ranks tell each other. Nothing here is asked in a worker.

It divides nothing itself (`order`). PyTorch is asked only if the program has loaded it.

The explicit argument counts first, then the process group, then what the launcher said in RANK and
WORLD_SIZE. Where two of these differ, or half of one is missing, nobody is guessed: data would be lost or
seen twice without a word.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from volfs_client.errors import AlreadySharded, RankUnknown

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

__all__ = ["Rank", "find_rank", "forbid_resharding", "local_world_size", "share"]

T = TypeVar("T")


class Rank(NamedTuple):
    """The number of this process, and of how many."""

    rank: int
    world: int


def find_rank(
    rank: int | None = None, world_size: int | None = None, group: ProcessGroup | None = None
) -> Rank:
    """This process among those that share the data.

    Raises RankUnknown if the sources say different things, ValueError for arguments that cannot be.
    """
    if rank is not None or world_size is not None:
        return _checked(rank, world_size)
    said = _environment()
    grouped = _of_group(group)
    if grouped is None:
        if isinstance(said, str):
            raise RankUnknown(
                f"{said} is set and its companion is not: set RANK and WORLD_SIZE both, or neither, or pass "
                "rank= and world_size="
            )
        return said or Rank(0, 1)
    if group is None and isinstance(said, Rank) and said != grouped:
        raise RankUnknown(
            f"RANK and WORLD_SIZE say {said.rank} of {said.world}, the process group {grouped.rank} of "
            f"{grouped.world}: pass rank= and world_size=, or process_group="
        )
    return grouped


def local_world_size() -> int:
    """How many processes of the job run on this machine, as the launcher says; 1 if it does not."""
    try:
        return max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    except ValueError:
        return 1


def share(make: Callable[[], T], group: ProcessGroup | None = None) -> T:
    """What `make` answers on rank 0, on all ranks of the process group; its error too, on all.

    Without a process group each process makes its own. All ranks must come here.
    """
    found = _of_group(group)
    if found is None or found.world == 1:
        return make()
    import torch.distributed as dist

    message: list[Any] = [None, None]
    if found.rank == 0:
        try:
            message[0] = make()
        except Exception as error:
            message[1] = error
    dist.broadcast_object_list(message, src=dist.get_global_rank(group, 0) if group else 0, group=group)
    if message[1] is not None:
        raise message[1]
    made: T = message[0]
    return made


def forbid_resharding() -> None:
    """Raise AlreadySharded if the caller was called by a wrapper that gives each rank a part of what it gets.

    Accelerate and the Trainer of transformers do so with any IterableDataset, by two classes, and tell the
    data set nothing: their frames on the stack are all that there is to see. A forked worker has them too,
    a spawned one is asked for while they are there.
    """
    frame = sys._getframe(1)
    above: Any = frame
    while above is not None:
        wrapper = type(above.f_locals.get("self")) if above.f_code.co_name == "__iter__" else None
        if (
            wrapper is not None
            and wrapper.__name__ in ("IterableDatasetShard", "DataLoaderDispatcher")
            and wrapper.__module__.partition(".")[0] in ("accelerate", "transformers")
        ):
            raise AlreadySharded(
                f"{wrapper.__module__}.{wrapper.__name__} would divide the files among the ranks once more, "
                "and most would never be seen: pass shard=False to the data set, or keep its loader out of "
                "prepare()"
            )
        above = above.f_back


def _checked(rank: int | None, world_size: int | None) -> Rank:
    if rank is None or world_size is None:
        raise ValueError("rank and world_size are given together")
    if not 0 <= rank < world_size:
        raise ValueError(f"there is no rank {rank} of {world_size}")
    return Rank(rank, world_size)


def _environment() -> Rank | str | None:
    """What the launcher said; the name of the variable if it is one of two."""
    said = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if os.environ.get(name)}
    if len(said) < 2:
        return next(iter(said), None)
    try:
        return _checked(int(said["RANK"]), int(said["WORLD_SIZE"]))
    except ValueError as error:
        raise RankUnknown(f"RANK={said['RANK']} and WORLD_SIZE={said['WORLD_SIZE']}: {error}") from None


def _of_group(group: ProcessGroup | None) -> Rank | None:
    if group is None and "torch.distributed" not in sys.modules:
        return None
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    found = Rank(dist.get_rank(group), dist.get_world_size(group))
    if found.rank < 0:
        raise RankUnknown("this process is not in the process group that was passed")
    return found
