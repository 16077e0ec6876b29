"""A process that serves a mount: started, waited for, measured, and taken away whatever state it is in.

It does not know what it mounts. Nothing here waits for the mount without a deadline.

*Concurrency:* `destroy` may be called from another thread while the owner hangs in the mount; that is what it
is for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.bench.deadline import Deadline
from tests.bench.settings import REPOSITORY
from tests.mount import mounts

__all__ = ["Daemon", "DaemonError", "wait_until"]

_TICKS = os.sysconf("SC_CLK_TCK")
_START_S = 60.0
_END_S = 60.0
_LOG_TAIL_LINES = 3


class DaemonError(Exception):
    """A mount did not come, or did not go."""


def wait_until(condition: Callable[[], bool], within_s: float, every_s: float = 0.02) -> bool:
    """Whether `condition` became true in time. For what has no event: mount tables, the queues of peers."""
    end = time.monotonic() + within_s
    never = threading.Event()
    while not condition():
        if time.monotonic() > end:
            return False
        never.wait(every_s)
    return True


def _parents() -> dict[int, int]:
    """Process -> its parent, for all."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text(errors="replace")
            except OSError:
                continue  # it ended meanwhile
            found[int(name)] = int(text.rpartition(")")[2].split()[1])
    return found


class Daemon:
    """Started by the constructor; `wait` until it answers, `stop` or `destroy` at the end."""

    def __init__(
        self,
        command: Sequence[str | Path],
        mountpoint: Path,
        log: Path,
        *,
        environment: Mapping[str, str] | None = None,
        stop_signal: signal.Signals | None = None,
    ) -> None:
        mountpoint.mkdir(parents=True, exist_ok=True)
        self.mountpoint = mountpoint
        self._log = log
        self._signal = stop_signal  # None: it ends when its mount is taken away
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [str(part) for part in command],
                cwd=REPOSITORY,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is ours to handle, in our order
            )

    def wait(self) -> Daemon:
        """Until something is mounted and answers. Raises DaemonError, and has destroyed it then."""

        def settled() -> bool:
            return self._process.poll() is not None or mounts.is_mounted(self.mountpoint)

        try:
            came = wait_until(settled, _START_S) and mounts.is_mounted(self.mountpoint)
            if came:
                with Deadline(_START_S, self.destroy):
                    os.statvfs(self.mountpoint)
        except BaseException:
            self.destroy()
            raise
        if not came:
            self.destroy()
            raise DaemonError(f"no mount: {self._last_words()}")
        return self

    # -- what it costs -----------------------------------------------------------------

    def pids(self) -> list[int]:
        """The process and all below it."""
        parents = _parents()
        found = [self._process.pid]
        for pid in found:  # grows while it is gone through
            found += [child for child, parent in parents.items() if parent == pid]
        return found

    def cpu_s(self) -> float:
        """User and system seconds so far."""
        total = 0
        for pid in self.pids():
            try:
                fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            total += int(fields[11]) + int(fields[12])
        return total / _TICKS

    def peak_bytes(self) -> int:
        """The most that was ever resident, the sum over its processes (VmHWM)."""
        total = 0
        for pid in self.pids():
            try:
                lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
            except OSError:
                continue
            total += sum(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))
        return total

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process that was started."""
        self._process.send_signal(number)

    # -- its end -----------------------------------------------------------------------

    def stop(self) -> None:
        """Unmount and wait for the end. Raises DaemonError if that had to be forced."""
        if self._signal is None:
            wait_until(self._unmounted, 10, 0.1)
        else:
            self._process.send_signal(self._signal)
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.destroy()
            raise DaemonError(f"did not end within {_END_S:g} s: {self._last_words()}") from None
        if mounts.is_mounted(self.mountpoint):
            self.destroy()
            raise DaemonError(f"ended, but its mount is there: {self._last_words()}")

    def _unmounted(self) -> bool:
        command = ["fusermount3", "-u", str(self.mountpoint)]
        subprocess.run(command, capture_output=True, check=False, timeout=_END_S)
        return not mounts.is_mounted(self.mountpoint)

    def destroy(self) -> None:
        """Kill the processes and take the mount away; whoever hangs in it comes back with an error."""
        mounts.abort(self.mountpoint)
        for pid in self.pids():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        mounts.detach(self.mountpoint)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            pass  # in a system call that the kernel will not leave; said by whoever looks for leftovers

    def _last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        code = self._process.poll()
        return " | ".join([f"exit code {code}", *lines[-_LOG_TAIL_LINES:]])
