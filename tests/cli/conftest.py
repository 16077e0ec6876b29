"""The command line in processes of its own, against the real daemon or the fake one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from volfs.kernel import mounts

_REPOSITORY = Path(__file__).resolve().parents[2]
_FAKE = Path(__file__).with_name("fake")
_IMPATIENT = """
import sys
import volfs.cli
sys.modules["volfs.cli.control"].STATUS_DEADLINE_S = sys.modules["volfs.cli.umount"]._GRACE_S = 2.0
volfs.cli.main(prog_name="volfs")
"""

Volfs = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass
class Bench:
    """Directories for one mount, and the verbs on them."""

    base: Path
    fake: dict[str, Any] | None = None  #: the fake daemon's behavior; None for the real daemon
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backing = self.base / "backing"
        self.mountpoint = self.base / "mount"
        self.cache_dir = self.base / "cache"
        self.backing.mkdir()
        self.mountpoint.mkdir()

    def run(self, *arguments: str | Path, impatient: bool = False, cwd: Path | None = None) -> Any:
        """Run the command line; its exit code, stdout and stderr. Impatient: its own deadlines are 2 s."""
        path = [str(_FAKE), str(_REPOSITORY)] if self.fake is not None else [str(_REPOSITORY)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("VOLFS_")}
        environment |= {"PYTHONPATH": os.pathsep.join(path), "FAKE_DAEMON": json.dumps(self.fake or {})}
        environment["PYTHONIOENCODING"] = "utf-8:strict"  # as under most users' locales
        return subprocess.run(
            [
                sys.executable,
                "-P",
                *(("-c", _IMPATIENT) if impatient else ("-m", "volfs")),
                *map(str, arguments),
            ],
            env=environment | self.environment,
            cwd=cwd or self.base,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=60,
            check=False,
        )

    def mount(self, *options: str) -> Any:
        return self.run("mount", self.backing, self.mountpoint, "--cache-dir", self.cache_dir, *options)

    def mounted(self, *options: str) -> int:
        """Mount, which must go well; the daemon's pid."""
        done = self.mount(*options)
        assert (done.returncode, done.stderr) == (0, "")
        return self.pid()

    def umount(self, *options: str, impatient: bool = False) -> Any:
        return self.run("umount", self.mountpoint, *options, impatient=impatient)

    def pid(self) -> int:
        return int(json.loads(os.getxattr(self.mountpoint, "user.volfs.status"))["pid"])

    def daemons(self) -> list[int]:
        """Processes that serve a mount of these directories."""
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and str(self.mountpoint).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
        return found


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    """Makes a bench; what it mounted and started is gone afterwards, also after a failure."""
    made: list[Bench] = []

    def make(fake: dict[str, Any] | None = None, **environment: str) -> Bench:
        base = tmp_path / f"bench-{len(made)}"
        base.mkdir()
        made.append(Bench(base, fake, environment))
        return made[-1]

    yield make
    for one in made:
        for pid in one.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        while mounts.find(one.mountpoint) is not None:
            mounts.unmount(one.mountpoint, lazy=True)
        shutil.rmtree(one.base, ignore_errors=True)
