"""What a rank does under torchrun in a test: train, save through its own mount, wait for all, load at once.

    torchrun --nproc-per-node N -m tests.client.torchrun_ranks ANSWERS (save|load) MOUNT...

The mounts are of one backing; the ranks divide them among themselves in blocks, as nodes do. There are three
checkpoints: by VolumeWriter, by CheckpointManager, and by `torch.save` on rank 0 alone. With `save` they are
made first; with `load` they are there, from any number of ranks. Each rank writes what it has and what it
found, as JSON, to ANSWERS/RANK.
"""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map_only
from volfs_client import CheckpointManager, VolumeReader, VolumeWriter
from volfs_client.checkpoint import load, save

from tests.client.rank_tasks import Trained, digest, full, meet

__all__: list[str] = []

_STEP = 7


def _save(mount: Path, world: int) -> str:
    """The digest of what was saved."""
    trained = Trained(world, seed=_STEP)
    state = {"trained": trained, "step": _STEP}
    save(dict(state), storage_writer=VolumeWriter(mount / "written", thread_count=2))
    with CheckpointManager(mount / "kept", keep_last=1) as manager:
        manager.save(_STEP, dict(state))
    whole = tree_map_only(torch.Tensor, full, trained.state_dict())
    if dist.get_rank() == 0:
        torch.save({**whole, "step": _STEP}, mount / "one.pt")
    return trained.digest()


def _load(mount: Path, world: int) -> dict[str, tuple[int, str]]:
    """The step and the digest of each checkpoint, loaded into models of other weights."""
    found = {}
    trained = Trained(world, seed=0)
    state: dict[str, Any] = {"trained": trained, "step": 0}
    load(state, storage_reader=VolumeReader(mount / "written"))
    found["written"] = state["step"], trained.digest()

    trained = Trained(world, seed=1)
    state = {"trained": trained, "step": 0}
    with CheckpointManager(mount / "kept") as manager:
        manager.restore(state)
    found["kept"] = state["step"], trained.digest()

    whole = torch.load(mount / "one.pt")
    found["one.pt"] = whole.pop("step"), digest(whole)
    return found


def _main(answers: str, what: str, *mounts: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    meet()
    rank, world = dist.get_rank(), dist.get_world_size()
    mount = Path(mounts[rank * len(mounts) // world])
    answer: dict[str, Any] = {"mount": str(mount), "world": world, "before": Trained(world, seed=0).digest()}
    if what == "save":
        answer["saved"] = _save(mount, world)
        dist.barrier()
    answer["loaded"] = _load(mount, world)
    (Path(answers) / str(rank)).write_text(json.dumps(answer))
    dist.destroy_process_group()


if __name__ == "__main__":
    _main(*sys.argv[1:])
