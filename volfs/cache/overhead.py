"""What a cache takes on the disk besides cache files: its folders, the index, and the daemon's own databases.

It only measures. The folders are counted once: the page that each cache file is
charged for its inode and its name pays for their growth (`core.spans.cost_bytes`).

*Concurrency:* the trio thread; a few calls of stat.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["Overhead"]

#: A block of `st_blocks`, whatever the file system's own are.
_SECTOR: Final = 512


class Overhead:
    """`bytes`: as of the last `measure`. `databases`: those of others that count, too."""

    def __init__(self, directory: Path, databases: Iterable[Path] = ()) -> None:
        self._folders = sum(os.stat(folder).st_blocks * _SECTOR for folder, _, _ in os.walk(directory))
        self._files = [
            Path(f"{path}{suffix}")
            for path in (directory / "index.db", *databases)
            for suffix in ("", "-wal", "-shm")
        ]
        self.bytes = 0
        self.measure()

    def measure(self) -> None:
        """Look again: a database grows with each transaction until its log is written back."""
        self.bytes = self._folders
        for path in self._files:
            try:
                self.bytes += os.stat(path).st_blocks * _SECTOR
            except OSError:
                continue  # a log that is not there yet, or a disk that fails: then it is the disk that limits
