"""The program of the checkpointing scenario: `python -m tests.bench.checkpointing DIRECTORY BYTES`.

It saves a state of so many bytes with the client's CheckpointManager: at once, in the background by a
thread, and by another process, of which the first save is left out, as it starts the process. It waits for a
line before each, and says then for how many seconds it was blocked, and how many it took.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Literal

__all__ = ["MODES", "main"]

MODES: Final[tuple[Literal["sync", "thread", "process"], ...]] = ("sync", "thread", "process")

_TENSORS: Final = 16


def main(directory: Path, size: int) -> None:
    """See the module."""
    import torch
    import torch.distributed as dist
    from volfs_client import CheckpointManager

    state = {f"layer{i}": torch.rand(size // _TENSORS // 4) for i in range(_TENSORS)}
    with tempfile.TemporaryDirectory() as meeting:
        dist.init_process_group("gloo", init_method=f"file://{meeting}/ranks", rank=0, world_size=1)
        print("ready", flush=True)
        for mode in MODES:
            with CheckpointManager(
                directory / mode, mode="thread" if mode == "sync" else mode
            ) as checkpoints:
                if mode == "process":
                    checkpoints.async_save(0, {"layer0": state["layer0"]}).result()
                sys.stdin.readline()
                start = time.perf_counter()
                saving = checkpoints.save(1, state) if mode == "sync" else checkpoints.async_save(1, state)
                blocked = time.perf_counter() - start
                if not isinstance(saving, Path):
                    saving.result()
                print(blocked, time.perf_counter() - start, flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
