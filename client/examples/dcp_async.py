"""Checkpoints that are saved in the background while training goes on, and loaded again.

    python dcp_async.py /Volumes/main/models/run-1
    torchrun --nproc-per-node 2 dcp_async.py /Volumes/main/models/run-1

Works on any directory, in one process and under torchrun, also on another number of ranks than before.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from volfs_client import CheckpointManager


def main() -> None:
    """Go on from the newest checkpoint, train some steps, and save every few of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--every", type=int, default=2)
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0

    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 8))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    checkpoints = CheckpointManager(arguments.directory, keep_last=2)
    first = 0
    if checkpoints.latest() is not None:
        state = whole_state(model, optimizer)
        first = checkpoints.restore(state)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        if rank == 0:
            print(f"goes on after step {first}")

    for step in range(first + 1, first + arguments.steps + 1):
        loss = model(torch.randn(16, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % arguments.every == 0:
            # Returns when the state is copied. One save is in flight; the next one waits for it, and
            # raises its error.
            checkpoints.async_save(step, whole_state(model, optimizer))
    checkpoints.close()
    if rank == 0:
        print(f"checkpoints of steps {', '.join(map(str, checkpoints.steps()))} are in {checkpoints.root}")
    if dist.is_initialized():
        dist.destroy_process_group()


def whole_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What a checkpoint holds."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


if __name__ == "__main__":
    main()
