"""The program of the checkpoint scenario: `python -m tests.bench.saving SOURCE TARGET`.

It loads SOURCE as one tensor, says `ready`, waits for a line, saves the tensor at TARGET with torch.save, and
says how many seconds that took to its close. It runs apart because torch is large.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

__all__ = ["main"]


def main(source: Path, target: Path) -> None:
    """See the module."""
    import torch

    tensor = torch.frombuffer(bytearray(source.read_bytes()), dtype=torch.float32)
    print("ready", flush=True)
    sys.stdin.readline()
    start = time.perf_counter()
    torch.save(tensor, target)
    print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
