"""Plain `torch.save` and `torch.load` on a volume: in one process, and under torchrun.

    python torch_save.py /Volumes/main/models/plain
    torchrun --nproc-per-node 2 torch_save.py /Volumes/main/models/plain

Works on any directory. One rank saves, all ranks load after a barrier, on whatever node they are. On a volfs
mount the file is there for the other nodes when it is closed, and `fsync` makes it survive a power cut.
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist


def save(state: dict[str, object], path: str) -> None:
    """Under another name first: who loads meanwhile, or after a crash, finds the whole old file."""
    made = f"{path}.{os.getpid()}.tmp"
    try:
        with open(made, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        if os.path.exists(made):
            os.unlink(made)
        raise


def main() -> None:
    """Save a model, and load it on all ranks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory")
    arguments = parser.parse_args()
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    rank = dist.get_rank() if dist.is_initialized() else 0
    os.makedirs(arguments.directory, exist_ok=True)
    path = os.path.join(arguments.directory, "model.pt")

    torch.manual_seed(rank)  # so that ranks differ until they have loaded
    model = torch.nn.Linear(512, 512)
    if rank == 0:
        save({"step": 1, "model": model.state_dict()}, path)
    if dist.is_initialized():
        dist.barrier()

    # Mapped: only what is used is read, and the ranks of a node share it.
    loaded = torch.load(path, mmap=True, weights_only=True)
    model.load_state_dict(loaded["model"])
    total = model.weight.sum()
    if dist.is_initialized():
        least, most = total.clone(), total.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        assert torch.equal(least, most), "a rank has loaded something else"
    if rank == 0:
        ranks = dist.get_world_size() if dist.is_initialized() else 1
        print(f"saved and loaded {os.path.getsize(path)} bytes on {ranks} ranks: {path}")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
