"""A volume under test: a backing directory, a mount by the CLI, its daemon, the proof that all went away.

It does not know any test. `VOLFS_TEST_TARGET=plain` replaces the mount by the backing directory itself, which
proves the tests: what a local disk does must pass them.

*Concurrency:* blocking calls only, each with a deadline of its own or guarded by the watchdog process.
"""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.mount import mounts
from volfs.kernel import dying

__all__ = ["MODES", "PLAIN", "REPOSITORY", "Volume", "by", "eventually", "is_staged"]

REPOSITORY = Path(__file__).resolve().parents[2]
PLAIN = os.environ.get("VOLFS_TEST_TARGET") == "plain"


def by(transport: str) -> tuple[str, str]:
    """The options for a transport, unless the environment names one for all."""
    return "--transport", os.environ.get("VOLFS_TEST_TRANSPORT", transport)


#: The ways to run a daemon that tests tell apart, and how long each may need to see a change it is not asked
#: about. Half of them speak to the kernel by one transport, half by the other; VOLFS_TEST_TRANSPORT makes it
#: one for all.
MODES: dict[str, tuple[str, ...]] = {
    "local": by("pyfuse3"),
    "cached": (*("--cache", "on", "--freshness", "0", "--poll-interval", "1"), *by("direct")),
    "background": (*("--commit", "background", "--commit-interval", "1"), *by("direct")),
    "cached-background": (
        *("--cache", "on", "--freshness", "0", "--poll-interval", "1"),
        *("--commit", "background", "--commit-interval", "1"),
        *by("pyfuse3"),
    ),
}

#: Polling finds a change one interval after it, plus the pass itself; inotify needs only to be scheduled.
_WINDOW_POLLED_S = 5.0
_WINDOW_NOTIFIED_S = 3.0

#: A start is an interpreter, a few imports and one mount call; much more than that on a busy machine is a
#: hang.
_START_S = 40.0
_LOG_TAIL_LINES = 40


def eventually(
    condition: Callable[[], Any], within: float = 10.0, what: str = "", every: float = 0.01
) -> Any:
    """The first true value of `condition`, asked again and again until `within` seconds are over."""
    deadline = time.monotonic() + within
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what or condition}; last seen {value!r}")
        pause.wait(every)


def is_staged(path: Path) -> bool:
    """Whether a file under `.volfs` holds bytes, rather than showing that a mount lives."""
    return not path.is_dir() and path.parent.name not in ("owners", "locks")


@dataclass
class Volume:
    """One mount of one backing directory. `mount` before use, `unmount` after; both assert."""

    base: Path
    options: tuple[str, ...] = ()
    name: str = "a"
    backing: Path = field(default=Path())
    environment: dict[str, str] = field(default_factory=dict)
    others: list[Volume] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.backing == Path():
            self.backing = self.base / "backing"
        self.cache_dir = self.base / f"cache-{self.name}"
        self.mountpoint = self.backing if PLAIN else self.base / f"mount-{self.name}"
        for path in (self.backing, self.mountpoint, self.cache_dir):
            path.mkdir(parents=True, exist_ok=True)
        self.pid = 0
        self._announced = -1

    # -- life ------------------------------------------------------------------

    def mount(self, *more: str) -> Volume:
        """Mount by the command line; it must say yes, and then the root must answer."""
        if PLAIN:
            return self
        done = self.volfs("mount", str(self.backing), str(self.mountpoint), *self._options(*more))
        assert done.returncode == 0, f"mount failed ({done.returncode}): {done.stderr}\n{self.log_tail()}"
        assert mounts.is_mounted(self.mountpoint), "mount said yes, but nothing is mounted"
        self.pid = int(self.status()["pid"])
        return self

    def mount_by(self, program: Path | None = None, *more: str) -> Volume:
        """Mount by the daemon alone: that of the command line, or a program that takes the same arguments."""
        self.begin(program, *more)
        return self.ready()

    def begin(self, program: Path | None = None, *more: str) -> None:
        """As `mount_by`, but do not wait: `ready` does."""
        what = ["-m", "volfs"] if program is None else [str(program)]
        self._announced, announces = os.pipe()
        head = [sys.executable, *what, "mount", "--foreground", f"--ready-fd={announces}"]
        with (self.cache_dir / "volfs.log").open("ab") as log:
            process = subprocess.Popen(
                [*head, *self._options(*more), str(self.backing), str(self.mountpoint)],
                **self._surroundings(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[announces],
            )
        os.close(announces)
        self.pid = process.pid
        threading.Thread(target=process.wait, daemon=True).start()  # reaps it, whoever ends it

    def ready(self) -> Volume:
        """Wait until the daemon says that its mount is there, and it answers; if not, nothing stays."""
        try:
            said = b""
            if select.select([self._announced], [], [], _START_S)[0]:
                said = os.read(self._announced, 4096)
            assert said == b"ready\n", f"no mount: {said.decode()}\n{self.log_tail()}"
            self.status()
        except BaseException:
            self.discard()
            raise
        self._hear_no_more()
        return self

    def _hear_no_more(self) -> None:
        announced, self._announced = self._announced, -1
        if announced >= 0:
            os.close(announced)

    def unmount(self, *, timeout: float = 60) -> None:
        """Unmount by the command line: exit code 0, the daemon ended, nothing staged left in the backing."""
        for other in self.others:
            other.unmount(timeout=timeout)
        self.others.clear()
        if PLAIN:
            return
        done = self.volfs("umount", str(self.mountpoint), "--timeout", f"{timeout:g}", within=timeout + 30)
        assert done.returncode == 0, (
            f"umount: exit {done.returncode}: {done.stderr}{done.stdout}\n{self.log_tail()}"
        )
        assert not mounts.is_mounted(self.mountpoint), "umount said yes, but the mount is there"
        eventually(lambda: not mounts.is_running(self.pid), 10, f"daemon {self.pid} ended", every=0.02)
        assert self.leftovers() == [], "staged files are left in the backing"

    def kill(self) -> None:
        """SIGKILL the daemon, as the kernel's OOM killer would. The dead mount stays.

        Should the daemon not be able to die, it is ended as the next `volfs mount` does.
        """
        os.kill(self.pid, signal.SIGKILL)
        eventually(lambda: not mounts.is_running(self.pid), 10, "the killed daemon ended")
        dying.end(self.mountpoint, self.cache_dir / "lock")

    def remount(self, *more: str) -> Volume:
        """Mount again with the same directories, over a dead mount too."""
        return self.mount(*more)

    def second(self, *options: str) -> Volume:
        """Another mount of the same backing, as another node has it. It goes away with this one."""
        name = f"{self.name}{len(self.others) + 2}"
        other = Volume(self.base, options or self.options, name, self.backing, self.environment)
        self.others.append(other)
        return other.mount()

    def discard(self) -> list[str]:
        """Take everything away by force; what had to be forced is the answer (empty: nothing was there)."""
        forced = []
        for other in self.others:
            forced += other.discard()
        self.others.clear()
        if not PLAIN and mounts.is_mounted(self.mountpoint):
            mounts.abort(self.mountpoint)
            mounts.detach(self.mountpoint)
            forced.append(f"{self.mountpoint} was still mounted")
        if self.pid and mounts.is_running(self.pid):
            os.kill(self.pid, signal.SIGKILL)
            forced.append(f"daemon {self.pid} was still running")
        self.pid = 0
        self._hear_no_more()
        return forced

    def is_running(self) -> bool:
        """Whether the daemon's process is there, whatever state its mount is in."""
        return bool(self.pid) and mounts.is_running(self.pid)

    def is_alive(self) -> bool:
        """Whether the daemon runs and its root answers."""
        if PLAIN:
            return True
        if not self.pid or not mounts.is_running(self.pid):
            return False
        try:
            os.statvfs(self.mountpoint)
            return bool(self.status()["pid"] == self.pid)
        except OSError:
            return False

    # -- control plane ---------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What `volfs status --json` shows."""
        if PLAIN:
            return {"pid": os.getpid(), "conflicts": 0, "errors": 0, "commit": {"waiting": 0, "failed": 0}}
        loaded: dict[str, Any] = json.loads(os.getxattr(self.mountpoint, "user.volfs.status"))
        return loaded

    def commit(self, path: Path | None = None) -> None:
        """Commit one file, a directory's files, or everything; raises the true errno."""
        if not PLAIN:
            os.setxattr(path or self.mountpoint, "user.volfs.commit", b"1")

    def refresh(self) -> None:
        """Check everything known again, now."""
        if not PLAIN:
            os.getxattr(self.mountpoint, "user.volfs.refresh")

    def settle(self) -> None:
        """Wait until nothing is left to commit."""
        for volume in (self, *self.others):
            volume.commit()
            eventually(lambda v=volume: v.status()["commit"]["waiting"] == 0, 20, "nothing waits to commit")

    # -- facts -----------------------------------------------------------------

    @property
    def window(self) -> float:
        """Seconds after which a change must have been seen without a new open (R2), with room for a busy
        machine.
        """
        return _WINDOW_POLLED_S if "on" in self.options else _WINDOW_NOTIFIED_S

    def leftovers(self) -> list[str]:
        """Staged files in the backing and in the cache directory."""
        found = [p for p in (self.backing / ".volfs").rglob("*") if is_staged(p)]
        found += [p for p in (self.cache_dir / "staging").rglob("*") if not p.is_dir()]
        return sorted(str(p) for p in found)

    def descriptors(self) -> int:
        """How many descriptors the daemon has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def resident(self) -> int:
        """Resident memory of the daemon, in bytes."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise ProcessLookupError(errno.ESRCH, "the daemon is gone")

    def log_tail(self, lines: int = _LOG_TAIL_LINES) -> str:
        """The end of the daemon's log."""
        try:
            text = (self.cache_dir / "volfs.log").read_text(errors="replace")
        except OSError as error:
            return f"(no log of {self.name}: {error})"
        return "\n".join([f"--- log of mount {self.name}", *text.splitlines()[-lines:]])

    def volfs(self, *arguments: str, within: float = _START_S) -> subprocess.CompletedProcess[str]:
        """Run the command line."""
        return subprocess.run(
            [sys.executable, "-m", "volfs", *arguments],
            **self._surroundings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=within,
            check=False,
        )

    def _options(self, *more: str) -> list[str]:
        return ["--cache-dir", str(self.cache_dir), *self.options, *more]

    def _surroundings(self) -> dict[str, Any]:
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), **self.environment}
        return {"cwd": REPOSITORY, "env": environment}
