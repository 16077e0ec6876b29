"""A daemon that is killed while the kernel makes its notifying thread wait: the mount must not hang."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.mount import mounts
from tests.mount.volume import PLAIN, Volume, eventually

#: It holds a page until the daemon answers, and ends with the errno.
_WRITE = """
import os, sys
fd = os.open(sys.argv[1], os.O_WRONLY)
try:
    os.pwrite(fd, b"x", 0)
except OSError as error:
    os._exit(error.errno)
"""

_FAULTY = Path(__file__).with_name("faulty_store.py")

pytestmark = pytest.mark.skipif(PLAIN, reason="a plain directory has no daemon to kill")


def states(pid: int) -> list[str]:
    """The state of each thread of a process, the first one first."""
    found = []
    for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
        with suppress(FileNotFoundError):
            text = Path(f"/proc/{pid}/task/{task}/stat").read_text(errors="surrogateescape")
            found.append(text.rpartition(")")[2].split()[0])
    return found


def test_a_killed_daemon_that_cannot_die(make_volume: Callable[..., Volume], tmp_path: Path) -> None:
    """W6e: the next mount ends what is left of it, and who hung in the old one gets an error."""
    volume = make_volume(environment={"VOLFS_TEST_FAULTS": str(tmp_path)}).mount_by(_FAULTY)
    (volume.backing / "f").write_bytes(bytes(100_000))  # the kernel must have no page of it yet
    (tmp_path / "reader.copy_to").write_text("hang")
    # A process of its own: whoever has the file open hangs, a fork of it too.
    writer = subprocess.Popen([sys.executable, "-c", _WRITE, str(volume.mountpoint / "f")])
    eventually(lambda: "reader.copy_to" in (tmp_path / "calls").read_text(), 10, "the write is under way")
    with (volume.backing / "f").open("r+b") as file:
        file.write(b"theirs")
    eventually(lambda: "D" in states(volume.pid), 10, "the notifying thread waits for the page")
    os.kill(volume.pid, signal.SIGKILL)
    eventually(lambda: states(volume.pid)[:1] == ["Z"], 10, "the daemon is dead but for that thread")
    dead = volume.pid
    assert writer.poll() is None

    (tmp_path / "reader.copy_to").unlink()
    volume.mount()
    assert writer.wait(10) == errno.ECONNABORTED
    assert not mounts.is_running(dead)
    assert (volume.mountpoint / "f").read_bytes()[:6] == b"theirs"
