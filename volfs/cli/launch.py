"""Starting the daemon in the background, and waiting until its mount answers.

The daemon is `python -m volfs mount --foreground --ready-fd N`, detached. It writes
one line to descriptor N: `ready`, or `error: ` and what to do. What the daemon
does with its life is not known here.

*Invariants:* after an error no process and no mount of ours is left.
"""

from __future__ import annotations

import contextlib
import os
import select
import site
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Final

import volfs
from volfs.cli import control
from volfs.cli.output import one_line, reason
from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.kernel import mounts

__all__ = ["LOG_NAME", "READY_S", "Announcement", "start"]

LOG_NAME: Final = "volfs.log"
#: A daemon is ready within a second; recovery of a long journal and a slow backing take longer.
READY_S: Final = 30.0
#: How long a daemon that was told to end may take before it is killed: nothing was acknowledged yet.
_END_S: Final = 5.0
_ERROR: Final = b"error: "


class Announcement:
    """The daemon's side of the pipe: says once how the start went."""

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        if descriptor is not None:
            os.set_inheritable(descriptor, False)

    @property
    def awaited(self) -> bool:
        """Whether someone still waits to hear how the start goes."""
        return self._descriptor is not None

    def ready(self) -> None:
        self._say(b"ready\n")

    def failed(self, message: object) -> None:
        self._say(_ERROR + os.fsencode(one_line(message)) + b"\n")

    def _say(self, line: bytes) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            # Whoever waited may have given up: EPIPE.
            with contextlib.suppress(OSError):
                os.write(descriptor, line)
            os.close(descriptor)


def start(config: MountConfig, *, ready_s: float = READY_S) -> str:
    """Start the daemon; returns what it had to say on the way when its mount answers, else SetupError."""
    reading, writing = os.pipe()
    # Until the daemon has its log (in the cache directory, once that is known to be fit) it writes here.
    with tempfile.TemporaryFile() as early:
        try:
            daemon = subprocess.Popen(
                _command(config, writing),
                stdin=subprocess.DEVNULL,
                stdout=early,
                stderr=early,
                cwd="/",  # holds no directory busy that someone may want to unmount
                env=_environment(),
                pass_fds=[writing],
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            line = _first_line(reading, ready_s)
            if line == b"ready":
                _check_answer(config.mountpoint)
                return _read_all(early)
            if line is not None and line.startswith(_ERROR):
                raise SetupError(os.fsdecode(line.removeprefix(_ERROR)))
            log = config.cache_dir / LOG_NAME
            if line is None:
                raise SetupError(
                    f"the mount was not ready within {ready_s:.0f} s, and was given up; see {log}"
                )
            raise SetupError(_last_words(daemon, early, log))
        except BaseException:
            _end(daemon, config.mountpoint)
            raise
        finally:
            os.close(reading)


def _command(config: MountConfig, descriptor: int) -> list[str]:
    # -P: the current directory's modules are not the daemon's. Paths come last and absolute.
    head = [sys.executable, "-P", "-m", "volfs", "mount", "--foreground", f"--ready-fd={descriptor}"]
    return [*head, *config.flags(), "--", str(config.backing), str(config.mountpoint)]


def _environment() -> dict[str, str]:
    """Ours, and the directory of this very package where the interpreter would not look by itself."""
    environment = dict(os.environ)
    here = str(Path(volfs.__file__).resolve().parent.parent)
    if here not in {os.path.realpath(path) for path in site.getsitepackages()}:
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = f"{here}{os.pathsep}{known}" if known else here
    return environment


def _first_line(reading: int, deadline_s: float) -> bytes | None:
    """The line without its end; b"" when the pipe closed without one, None after the deadline."""
    until = time.monotonic() + deadline_s
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([reading], [], [], max(0.0, until - time.monotonic()))[0]:
            return None
        piece = os.read(reading, 4096)
        if not piece:
            return b""
        line += piece
    return line.rstrip(b"\n")


def _check_answer(mountpoint: Path) -> None:
    try:
        control.read_status(mountpoint)
    except (OSError, ValueError) as error:
        why = reason(error) if isinstance(error, OSError) else one_line(error)
        raise SetupError(f"the mount at {mountpoint} came up but does not answer: {why}") from error


def _last_words(daemon: subprocess.Popen[bytes], early: IO[bytes], log: Path) -> str:
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(_END_S)
    text = _read_all(early)
    if not text.strip():
        with contextlib.suppress(OSError):
            text = log.read_text(errors="replace")[-4096:]
    lines = [line for line in text.splitlines() if line.strip()]
    said = f": {lines[-1].strip()}" if lines else ""
    return f"the daemon died before the mount was ready (see {log}){said}"


def _read_all(early: IO[bytes]) -> str:
    early.seek(0)
    return early.read().decode(errors="replace")


def _end(daemon: subprocess.Popen[bytes], mountpoint: Path) -> None:
    # It unmounts by itself when asked. One that is killed may leave a dead mount.
    for end in (daemon.terminate, daemon.kill):
        if daemon.poll() is None:
            end()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(_END_S)
    with contextlib.suppress(OSError):
        mount = mounts.find(mountpoint)
        if mount is not None and mount.is_volfs and control.is_dead(mountpoint):
            control.unmount(mountpoint, lazy=True, deadline_s=_END_S)
