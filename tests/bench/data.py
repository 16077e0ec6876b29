"""The data sets that scenarios read: made once a run, of bytes that no compression or deduplication shrinks.

*Invariants:* a data set is handed out only when it is older than the granularity of time stamps: what was
changed just now may change again unseen, and a careful cache does not keep it.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from tests.bench import dlio
from tests.bench.settings import MIB, Sizes

__all__ = ["CHECKPOINT", "DATA", "LARGE", "Data", "first_difference", "write_noise"]

LARGE: Final = "large.bin"
CHECKPOINT: Final = "checkpoint.bin"

_SETTLED_S: Final = 3.5


def write_noise(path: Path, size: int) -> None:
    """A file of `size` random bytes."""
    with path.open("wb", 0) as file:
        while size > 0:
            size -= file.write(os.urandom(min(size, MIB)))


def _small(directory: Path, sizes: Sizes) -> None:
    for i in range(sizes.directories):
        folder = directory / f"class{i:03}"
        folder.mkdir()
        for j in range(sizes.files_each):
            write_noise(folder / f"sample{i:03}-{j:05}.jpg", sizes.file_bytes)


def _large(directory: Path, sizes: Sizes) -> None:
    write_noise(directory / LARGE, sizes.large_bytes)


def _shuffled(directory: Path, sizes: Sizes) -> None:
    for i in range(sizes.shuffled_files):
        write_noise(directory / f"sample{i:05}.bin", sizes.shuffled_bytes)


def _listing(directory: Path, sizes: Sizes) -> None:
    for i in range(sizes.entries):
        write_noise(directory / f"entry{i:05}.txt", 64)


def _checkpoint(directory: Path, sizes: Sizes) -> None:
    write_noise(directory / CHECKPOINT, sizes.checkpoint_bytes)


def _dlio(directory: Path, sizes: Sizes) -> None:
    for workload in dlio.WORKLOADS:
        with tempfile.TemporaryDirectory() as output:
            command = workload.generate(directory / workload.name, Path(output), sizes)
            environment = {**os.environ, **dlio.ENVIRONMENT}
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


#: Name -> how it is made.
DATA: Final[dict[str, Callable[[Path, Sizes], None]]] = {
    "small": _small,
    "large": _large,
    "shuffled": _shuffled,
    "listing": _listing,
    "checkpoint": _checkpoint,
    "dlio": _dlio,
}


class Data:
    """The data sets of one run, below one directory."""

    def __init__(self, directory: Path, sizes: Sizes) -> None:
        self._directory = directory
        self._sizes = sizes
        self._made: dict[str, float] = {}

    def get(self, name: str) -> Path:
        """The directory of a data set; made at the first call. Its files are in `set/`."""
        directory = self._directory / name
        if name not in self._made:
            (directory / "set").mkdir(parents=True)
            DATA[name](directory / "set", self._sizes)
            self._made[name] = time.monotonic()
        young_for = self._made[name] + _SETTLED_S - time.monotonic()
        if young_for > 0:
            threading.Event().wait(young_for)
        return directory


def first_difference(pieces: dict[int, bytes], source: Path) -> int | None:
    """The lowest offset of the pieces that were read at which the source has other bytes."""
    with source.open("rb", 0) as file:
        for offset, piece in sorted(pieces.items()):
            if os.pread(file.fileno(), len(piece), offset) != piece:
                return offset
    return None
