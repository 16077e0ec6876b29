"""The slow store: `slowfs.c` compiled, mounted over a directory, and asked what it was asked.

It is the same for every system: ten milliseconds a request, 100 MB/s an open file, 1000 MB/s in all.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.bench.daemon import Daemon, DaemonError
from tests.bench.settings import LATENCY_S, STREAM_MBPS, TOTAL_MBPS

__all__ = ["Counters", "SlowStore", "build"]

_SOURCE = Path(__file__).with_name("slowfs.c")


def build(directory: Path) -> Path:
    """Compile slowfs; needs a C compiler and the development files of libfuse 3, else DaemonError."""
    binary = directory / "slowfs"
    flags = _run("pkg-config", "--cflags", "--libs", "fuse3").split()
    _run("cc", "-O2", "-Wall", "-o", str(binary), str(_SOURCE), *flags, "-lpthread")
    return binary


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise DaemonError(f"slowfs cannot be compiled: {error}") from error
    if done.returncode != 0:
        raise DaemonError(f"slowfs cannot be compiled: {done.stderr.strip()}")
    return done.stdout


class Counters(NamedTuple):
    """What reached the store."""

    requests: int
    read_bytes: int
    written_bytes: int

    def since(self, before: Counters) -> Counters:
        """What came between two looks."""
        return Counters(*(now - then for now, then in zip(self, before, strict=True)))


class SlowStore:
    """One directory, slow at `path` while it is mounted."""

    def __init__(self, binary: Path, directory: Path, base: Path) -> None:
        self.path = base / "store"
        command: list[str | Path] = [
            *(binary, directory, self.path, "-f"),
            f"--latency-ms={LATENCY_S * 1000:g}",
            f"--stream-mbps={STREAM_MBPS}",
            f"--total-mbps={TOTAL_MBPS}",
        ]
        self.daemon = Daemon(command, self.path, base / "store.log").wait()

    def by_kind(self) -> dict[str, int]:
        """Requests by kind (getattr, open, read ...), and the bytes; asking costs the store nothing."""
        text = os.getxattr(self.path, "user.slowfs.counters").decode()
        return {kind: int(count) for kind, count in (line.split() for line in text.splitlines())}

    def counters(self) -> Counters:
        kinds = self.by_kind()
        read, written = kinds.pop("read_bytes"), kinds.pop("written_bytes")
        return Counters(sum(kinds.values()), read, written)
