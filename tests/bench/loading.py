"""The program of the loading scenario: `python -m tests.bench.loading DIRECTORY`.

It reads all files of DIRECTORY in two shuffled epochs with the client's loader, and then begins at 90 % of
the second one with a new loader. It waits for a line before each, and says then how many samples it was and
how many seconds it took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any, Final

__all__ = ["BATCH", "WORKERS", "main"]

BATCH: Final = 64
WORKERS: Final = 2


def size_of(path: Any) -> int:
    """A decoder that is no work: all bytes are read, and counted."""
    with open(path, "rb") as file:
        return len(file.read())


def main(directory: Path) -> None:
    """See the module."""
    from volfs_client import DataLoader, VolumeDataset

    def loader() -> DataLoader:
        dataset = VolumeDataset(directory, shuffle=True, seed=1, transform=size_of)
        return DataLoader(dataset, batch_size=BATCH, num_workers=WORKERS)

    first, state = loader(), None
    print("ready", flush=True)
    for _ in range(2):
        sys.stdin.readline()
        start = time.perf_counter()
        samples = 0
        for step, batch in enumerate(first, 1):
            samples += len(batch)
            if step == max(1, len(first) * 9 // 10):
                state = first.state_dict()
        print(samples, time.perf_counter() - start, flush=True)
    again = loader()
    assert state is not None
    again.load_state_dict(state)
    sys.stdin.readline()
    start = time.perf_counter()
    batch = next(iter(again))
    print(len(batch), time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
