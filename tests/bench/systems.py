"""What is compared: each system mounts the same slow store in its own way, with options that suit it.

It does not measure. Where a peer's documentation recommends options for large sequential reads and many
files, they are used; what a peer does not keep on disk is not asked of it by the scenarios.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.daemon import Daemon
from tests.bench.settings import REPOSITORY
from tests.bench.targets import OURS

__all__ = ["Bindfs", "Direct", "Local", "Mounted", "Place", "Rclone", "System", "Volfs"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a trial happens. All below `base`, which is fresh; `store` is slow, `source` the same, fast.

    Where the scenario's store is not slow, both are one directory.
    """

    base: Path
    source: Path
    store: Path
    cache_bytes: int | None = None  #: limit of the disk cache; None for the default
    background: bool = False  #: files are uploaded after close

    @property
    def cache(self) -> Path:
        path = self.base / "cache"
        path.mkdir(exist_ok=True)
        return path

    @property
    def mountpoint(self) -> Path:
        return self.base / "mount"

    @property
    def log(self) -> Path:
        return self.base / "daemon.log"


@dataclass(frozen=True, slots=True)
class Mounted:
    """A system at work. `root` shows the store's files; `settled`: nothing waits to be uploaded."""

    root: Path
    daemon: Daemon | None = None
    settled: Callable[[], bool] = lambda: True
    status: Callable[[], dict[str, Any]] = dict  #: of ours, what `volfs status` says


class System:
    """One way to reach the store."""

    name: str = ""
    keeps_on_disk: bool = False  #: has a cache that survives the kernel's dropping of pages

    def missing(self) -> str | None:
        """How to install it, if it is not there."""
        return None

    def source(self, directory: Path) -> Path:
        """What the store holds for this system, for the files of `directory`; made at the first call."""
        return directory

    def mount(self, place: Place) -> Mounted:
        """Raises DaemonError if it does not come."""
        raise NotImplementedError(self.name)


class Direct(System):
    """No daemon at all: the slow store itself. Also under the name of a tool that is used on it."""

    def __init__(self, name: str = "direct") -> None:
        self.name = name

    def mount(self, place: Place) -> Mounted:
        return Mounted(place.store)


class Local(System):
    """The same files on the local disk."""

    name = "local"

    def mount(self, place: Place) -> Mounted:
        return Mounted(place.source)


class Volfs(System):
    """Ours, with its defaults."""

    name = OURS
    keeps_on_disk = True

    def mount(self, place: Place) -> Mounted:
        command: list[str | Path] = [sys.executable, "-P", "-m", "volfs", "mount", "--foreground"]
        command += ["--cache-dir", place.cache]
        if place.cache_bytes is not None:
            command += ["--cache-size", str(place.cache_bytes)]
        if place.background:
            command += ["--commit", "background"]
        daemon = Daemon(
            [*command, place.store, place.mountpoint],
            place.mountpoint,
            place.log,
            environment={"PYTHONPATH": str(REPOSITORY)},
            stop_signal=signal.SIGTERM,
        ).wait()

        def status() -> dict[str, Any]:
            loaded: dict[str, Any] = json.loads(os.getxattr(place.mountpoint, "user.volfs.status"))
            return loaded

        def settled() -> bool:
            commit = status()["commit"]
            return bool(commit["waiting"] == 0 and commit["open"] == 0)

        return Mounted(place.mountpoint, daemon, settled, status)


class Bindfs(System):
    """A pass-through in C without a cache of its own: what FUSE alone costs."""

    name = "bindfs"

    def missing(self) -> str | None:
        return None if shutil.which("bindfs") else "apt-get install bindfs"

    def mount(self, place: Place) -> Mounted:
        command: list[str | Path] = ["bindfs", "-f", "--multithreaded", place.store, place.mountpoint]
        return Mounted(place.mountpoint, Daemon(command, place.mountpoint, place.log).wait())


class Rclone(System):
    """`rclone mount` with its full disk cache, the slow directory as its remote."""

    name = "rclone"
    keeps_on_disk = True

    _OPTIONS: Final = (
        *("--vfs-cache-mode", "full", "--vfs-read-ahead", "128M", "--buffer-size", "32M"),
        # Parts of a large file: those that the disk cache lacks are read from the store as they come.
        *("--vfs-read-chunk-size", "128M", "--max-read-ahead", "1M"),
        *("--transfers", "16", "--checkers", "32", "--vfs-write-back", "1s"),
        # A directory's hash of a file would read the whole file before its first byte is served.
        *("--vfs-fast-fingerprint", "--no-checksum", "--poll-interval", "0"),
    )

    def missing(self) -> str | None:
        return None if shutil.which("rclone") else "apt-get install rclone"

    def mount(self, place: Place) -> Mounted:
        options = [*self._OPTIONS, *self._streams(), "--cache-dir", str(place.cache)]
        if place.cache_bytes is not None:
            options += ["--vfs-cache-max-size", f"{place.cache_bytes}B", "--vfs-cache-poll-interval", "1s"]
        where: list[str | Path] = ["--config", os.devnull, place.store, place.mountpoint]
        command: list[str | Path] = ["rclone", "mount", *where, *options]
        return Mounted(
            place.mountpoint,
            Daemon(command, place.mountpoint, place.log).wait(),
            settled=lambda: not self._dirty(place.cache),
        )

    @staticmethod
    def _streams() -> list[str]:
        """Parallel ranges of one file, where the version has them (1.68)."""
        said = subprocess.run(["rclone", "mount", "--help"], capture_output=True, text=True, check=False)
        known = "--vfs-read-chunk-streams" in said.stdout
        return ["--vfs-read-chunk-streams", "16", "--vfs-read-chunk-size", "4M"] if known else []

    @staticmethod
    def _dirty(cache: Path) -> bool:
        """Whether the description of a cached file says that it is still to be uploaded."""
        described = (path for path in (cache / "vfsMeta").rglob("*") if path.is_file())
        return any(b'"Dirty": true' in path.read_bytes() for path in described)
