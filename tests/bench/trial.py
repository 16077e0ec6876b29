"""One trial: one system, freshly mounted, so that its caches are cold, in one round of one scenario.

It offers a scenario what it needs to do its work and to measure it; it does not know which work.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.bench.data import Data
from tests.bench.deadline import Deadline
from tests.bench.results import Measurement
from tests.bench.settings import Sizes
from tests.bench.store import SlowStore
from tests.bench.systems import Mounted, System

__all__ = ["Trial", "WrongBytes", "bring_into_memory", "drop_caches"]


_READERS: Final = 8
_PIECE: Final = 1 << 20


class WrongBytes(Exception):
    """What was read or written is not what it should be: no figure counts."""


def drop_caches() -> None:
    """Write what is dirty, then drop the kernel's pages and names. For root only."""
    os.sync()
    if os.geteuid() == 0:
        Path("/proc/sys/vm/drop_caches").write_text("3")


def bring_into_memory(directory: Path) -> None:
    """Read all files below it, so that a store that is as slow as it is told to be stays no slower than that.

    Its disk is the caches' disk here, and would be what is measured; across a network it is another one.
    """
    with ThreadPoolExecutor(_READERS) as readers:
        for _ in readers.map(_read, directory.rglob("*")):
            pass


def _read(path: Path) -> None:
    if path.is_file():
        with path.open("rb", 0) as file:
            while file.readinto(bytearray(_PIECE)):
                pass


@dataclass
class Trial:
    """See the module. `scratch` is a fresh directory, in memory where that has room."""

    system: System
    mounted: Mounted
    store: SlowStore | None  #: None where it is the directory itself
    source: Path
    data: Data
    sizes: Sizes
    scratch: Path
    wanted: frozenset[str]
    round: int
    measurements: dict[str, Measurement] = field(default_factory=dict)
    _running: subprocess.Popen[str] | None = None

    @property
    def files(self) -> Path:
        """The data set, through the system."""
        return self.mounted.root / "set"

    @property
    def originals(self) -> Path:
        """The data set on the local disk, to compare with."""
        return self.source / "set"

    @contextmanager
    def measure(self, row: str) -> Iterator[Measurement]:
        """Time the block and count what it cost; the block sets `value`, or the seconds are the value."""
        measured = Measurement()
        daemon = self.mounted.daemon
        cpu = daemon.cpu_s() if daemon else None
        called = self._calls()
        before = self.store.counters() if self.store else None
        start = time.perf_counter()
        yield measured
        if not measured.seconds:
            measured.seconds = time.perf_counter() - start
        if measured.value is None:
            measured.value = measured.seconds
        if self.store and before:
            spent = self.store.counters().since(before)
            measured.requests, measured.read_bytes, measured.written_bytes = spent
        if daemon and cpu is not None:
            measured.cpu_s = daemon.cpu_s() - cpu
        measured.calls = {kind: count - called.get(kind, 0) for kind, count in self._calls().items()}
        if measured.calls:
            measured.calls["all"] -= 1  # the one that asked
        if row in self.wanted:
            self.measurements[row] = measured

    def _calls(self) -> dict[str, int]:
        """What the kernel has asked of ours so far; empty for the others."""
        status = self.mounted.status()
        return {"all": int(status["requests"]), **status.get("operations", {})} if status else {}

    def fail(self, row: str, reason: str) -> None:
        """Note that a row has no figure, and why."""
        if row in self.wanted:
            self.measurements[row] = Measurement(failed=reason)

    @contextmanager
    def start(
        self, command: Sequence[str | Path], environment: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """A program with pipes at its input and output; it does not outlive the block, nor the deadline."""
        with subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LC_ALL": "C", **(environment or {})},
            start_new_session=True,
        ) as process:
            self._running = process
            try:
                yield process
            finally:
                self.kill()
                self._running = None

    def run(
        self,
        command: Sequence[str | Path],
        *,
        cut_s: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[str, bool]:
        """Run a program; its output, and whether it was cut off after `cut_s`. Raises OSError if it fails."""
        with self.start(command, environment) as process:
            try:
                said, _ = process.communicate(timeout=cut_s)
            except subprocess.TimeoutExpired:
                self.kill()
                return process.communicate()[0], True
        if process.returncode != 0:
            raise OSError(f"{command[0]} ended with {process.returncode}")
        return said, False

    def kill(self) -> None:
        """End the running program and its children."""
        process = self._running
        if process is not None and process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    def deadline(self, seconds: float) -> Deadline:
        """Ends what the work hangs in: its program, the store (the daemon may wait for it), the daemon."""
        daemons = (self.store.daemon if self.store else None, self.mounted.daemon)
        ends = [self.kill, *(daemon.destroy for daemon in daemons if daemon)]
        return Deadline(seconds, *ends)
