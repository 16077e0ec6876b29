"""One mount of the soak's backing, as one machine of a cluster has it: its life, and what it owes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from tests.mount import mounts
from tests.mount.volume import MODES as VOLUME_MODES
from tests.mount.volume import Volume, by, eventually

__all__ = ["FRESHNESS_S", "MODES", "Node", "Owed"]

#: How old an answer of a store over a network may be here.
FRESHNESS_S: Final = 0.2

_REMOTE: Final = ("--cache", "on", "--freshness", str(FRESHNESS_S), "--poll-interval", "1")

#: How nodes are mounted: as volumes under test are, and as if over a network.
MODES: Final = {
    **VOLUME_MODES,
    "remote": (*_REMOTE, *by("direct")),
    "remote-background": (*_REMOTE, "--commit", "background", "--commit-interval", "1", *by("pyfuse3")),
}

#: Smaller than the data that workers read, so that blocks are evicted all the time.
_CACHE: Final = ("--cache-size", "24MiB")

_DAEMON: Final = Path(__file__).with_name("daemon.py")

#: Recovery, commits and all, on a busy machine. What is not done by then hangs.
_SETTLE_S: Final = 30.0


class Owed(NamedTuple):
    """How many rows of a journal are in which state."""

    rows: int
    kept: int


class Node:
    """See the module. `mode` is one of `MODES`."""

    def __init__(self, base: Path, backing: Path, mode: str, name: str = "") -> None:
        self.name = name or mode
        self.mode = mode
        # A file that stays open for a step of a worker is not quiet: not the tests' interval of 1 s.
        options = [*MODES[mode], "--commit-interval", "5"]
        if "on" in options:
            options += _CACHE
        self.volume = Volume(base, tuple(options), self.name, backing)
        self.volume.environment["VOLFS_SOAK_STORE"] = "remote" if self.is_remote else ""
        self.killed_s = 0.0

    @property
    def is_remote(self) -> bool:
        return self.mode.startswith("remote")

    @property
    def mountpoint(self) -> Path:
        return self.volume.mountpoint

    def start(self, crash_at: str = "") -> None:
        """Mount, over a dead mount too. `crash_at`: the daemon shall die there."""
        self.begin(crash_at)
        self.volume.ready()

    def begin(self, crash_at: str = "", *, slow: bool = False) -> None:
        """As `start`, but do not wait: `volume.ready` does. `slow`: its queue is long."""
        self.volume.environment.pop("VOLFS_CRASH_AT", None)
        if crash_at:
            self.volume.environment["VOLFS_CRASH_AT"] = crash_at
        self.killed_s = (self.killed_s or time.monotonic()) if crash_at else 0.0
        self.volume.environment["VOLFS_SOAK_QUEUE"] = "slow" if slow and "background" in self.mode else ""
        self.volume.begin(_DAEMON)

    def kill(self) -> None:
        """SIGKILL; from this moment on calls may fail."""
        self.killed_s = time.monotonic()
        self.volume.kill()

    def terminate(self) -> int:
        """SIGTERM, and the daemon's end; its exit code. AssertionError if it did not end by itself."""
        assert self.terminate_or_die(), f"the daemon of {self.name} died instead of ending"
        assert not mounts.is_mounted(self.mountpoint), "the daemon ended by itself and left its mount"
        return int(self.last_exit()["code"])

    def terminate_or_die(self) -> bool:
        """SIGTERM, and the daemon's end; whether it ended by itself."""
        pid = self.volume.pid
        self.killed_s = time.monotonic()
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: not mounts.is_running(pid), _SETTLE_S, f"the daemon of {self.name} ends")
        return self.last_exit().get("pid") == pid

    def last_exit(self) -> dict[str, int]:
        """How the last daemon ended; empty for one that was killed, or runs."""
        try:
            record: dict[str, int] = json.loads((self.volume.cache_dir / "last-exit.json").read_text())
        except FileNotFoundError:
            return {}
        return record

    @property
    def running(self) -> bool:
        return mounts.is_running(self.volume.pid)

    def settle(self) -> None:
        """Wait until nothing waits to be committed, of this daemon or an earlier one."""
        volume = self.volume

        def settled() -> bool:
            commit = volume.status()["commit"]
            return not (commit["waiting"] or commit["open"] or commit["replaying"])

        eventually(settled, _SETTLE_S, f"nothing waits on {self.name}")

    def owed(self) -> Owed:
        """What the journal has, read from a copy: the daemon's own must not be touched."""
        with tempfile.TemporaryDirectory(dir=self.volume.base) as copy:
            for suffix in ("", "-wal"):
                file = self.volume.cache_dir / f"journal.db{suffix}"
                if file.exists():
                    shutil.copy(file, copy)
            with closing(sqlite3.connect(Path(copy) / "journal.db")) as journal:
                try:
                    states = [state for (state,) in journal.execute("SELECT state FROM staged")]
                except sqlite3.OperationalError:  # killed before it had made its table
                    states = []
        return Owed(len(states), states.count("kept"))

    @property
    def staging(self) -> str:
        """The name of its directory under `.volfs`."""
        file = self.volume.cache_dir / "mount-id"
        return file.read_text().strip() if file.exists() else ""

    def staged(self) -> list[Path]:
        """Files in its staging directories, in the backing and in the cache directory."""
        found: list[Path] = []
        for directory in (self.volume.backing / ".volfs" / self.staging, self.volume.cache_dir / "staging"):
            if self.staging and directory.is_dir():
                found += [path for path in directory.iterdir() if not path.is_dir()]
        return found
