"""`volfs umount`: exit codes and lines for each way that a mount can end; no state of it hangs a verb."""

from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from tests.cli.conftest import Bench
from volfs.kernel import mounts

Make = Callable[..., Bench]


def killed(pid: int) -> None:
    """Kill the daemon and wait until it is gone."""
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([descriptor], [], [], 10)
    os.close(descriptor)


def test_clean(bench: Make) -> None:
    """Everything committed: code 0, no word, the daemon has ended and left its record."""
    one = bench({})
    pid = one.mounted()
    done = one.umount()

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert mounts.find(one.mountpoint) is None
    assert one.daemons() == []
    assert json.loads((one.cache_dir / "last-exit.json").read_text()) == {"pid": pid, "code": 0}


def test_forced_while_held(bench: Make) -> None:
    """--force takes a held mount away; its daemon serves the holder to the end, so the code is 3."""
    one = bench({})
    pid = one.mounted()
    daemon = os.pidfd_open(pid)
    held = os.open(one.mountpoint, os.O_RDONLY | os.O_DIRECTORY)
    try:
        done = one.umount("--force", "--timeout", "1", impatient=True)

        assert done.returncode == 3
        assert "serves the processes that hold it" in done.stderr
        assert mounts.find(one.mountpoint) is None
        assert os.listdir(held) == []
    finally:
        os.close(held)
    ended = select.select([daemon], [], [], 10)[0]
    os.close(daemon)
    assert ended
    assert one.daemons() == []


def test_not_a_mount(bench: Make) -> None:
    """A plain directory is refused by name."""
    one = bench({})
    done = one.umount()

    assert done.returncode == 1
    assert done.stderr == f"volfs: {one.mountpoint} is not a volfs mount: nothing is mounted there\n"


def test_a_mount_of_another_kind_is_left_alone(bench: Make) -> None:
    """Other file systems are never unmounted by volfs."""
    done = bench({}).run("umount", "/proc", "--force")

    assert done.returncode == 1
    assert done.stderr == "volfs: /proc is not a volfs mount: proc (proc) is mounted there\n"


def test_busy_names_the_holders_and_stays(bench: Make) -> None:
    """EBUSY: each holder is named by pid, command and path, and the mount stays until it has ended."""
    one = bench({})
    one.mounted()
    code = "import os, sys; os.chdir(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(one.mountpoint)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        done = one.umount()

        assert done.returncode == 1
        lines = done.stderr.splitlines()
        assert lines[0].startswith(f"volfs: held by pid {holder.pid} (")
        assert lines[0].endswith(f": {one.mountpoint}")
        assert lines[-1] == (
            f"volfs: {one.mountpoint} is busy and stays mounted; end what holds it, or use --force"
        )
        assert mounts.find(one.mountpoint) is not None
        holder.stdin.close()
        holder.wait(10)
    assert one.umount().returncode == 0


@pytest.mark.parametrize(("left", "code"), [(0, 0), (3, 3)])
def test_the_daemons_word_decides(bench: Make, left: int, code: int) -> None:
    """The commit before unmounting failed; whether something stays is what the daemon says at its end."""
    one = bench({"commit": errno.ENOSPC, "exit": left})
    one.mounted()
    done = one.umount()

    assert done.returncode == code
    if code:
        assert done.stderr == (
            f"volfs: {one.mountpoint} is taken away, but something stays in the journal "
            "(No space left on device); the next mount of the same directories commits it, "
            "or keeps it for `volfs recover`\n"
        )


def test_a_commit_that_does_not_end_is_bounded(bench: Make) -> None:
    """--timeout bounds the wait for commits; the mount is taken away and the code says what stays."""
    one = bench({"commit": "never"})
    one.mounted()
    began = time.monotonic()
    done = one.umount("--timeout", "1")

    assert done.returncode == 3
    assert "something stays in the journal (no answer within the deadline)" in done.stderr
    assert time.monotonic() - began < 15
    assert mounts.find(one.mountpoint) is None
    assert one.daemons() == []


def test_dead(bench: Make) -> None:
    """The daemon was killed: status says so, umount takes the mount away and ends with 3."""
    one = bench({})
    killed(one.mounted())
    told = one.run("status", one.mountpoint)
    done = one.umount()

    assert (told.returncode, done.returncode) == (1, 3)
    assert told.stderr.startswith(f"volfs: the daemon of {one.mountpoint} has died;")
    assert done.stderr.startswith(f"volfs: the daemon of {one.mountpoint} had died; the mount is taken away.")
    assert mounts.find(one.mountpoint) is None


def test_a_dead_mount_is_mounted_over(bench: Make) -> None:
    """The next mount takes a dead one away, says so, and works."""
    one = bench({})
    killed(one.mounted())
    done = one.mount()

    assert done.returncode == 0
    assert "took away a dead mount" in done.stderr
    assert len([mount for mount in mounts.mounts() if mount.mountpoint == one.mountpoint]) == 1
    assert one.umount().returncode == 0


def test_hung(bench: Make) -> None:
    """A mount that does not answer hangs no verb; without --force it stays, with it goes."""
    one = bench({})
    pid = one.mounted()
    os.kill(pid, signal.SIGSTOP)
    try:
        told = one.run("status", one.mountpoint, impatient=True)
        kept = one.umount(impatient=True)
        still = mounts.find(one.mountpoint)
        forced = one.umount("--force", impatient=True)
    finally:
        os.kill(pid, signal.SIGCONT)

    assert (told.returncode, kept.returncode, forced.returncode) == (1, 1, 3)
    assert "does not answer" in told.stderr
    assert "stays mounted" in kept.stderr
    assert still is not None
    assert mounts.find(one.mountpoint) is None


def test_commit_tells_the_errno(bench: Make) -> None:
    """`volfs commit` fails with the store's own reason."""
    one = bench({"commit": errno.EDQUOT})
    one.mounted()
    done = one.run("commit", one.mountpoint)
    one.umount()

    assert done.returncode == 1
    assert done.stderr == f"volfs: cannot commit {one.mountpoint}: Disk quota exceeded\n"


def test_commit_elsewhere_leaves_no_trace(bench: Make) -> None:
    """On another file system the control attribute would be stored: the path is refused before."""
    one = bench({})
    done = one.run("commit", one.backing)

    assert done.returncode == 1
    assert done.stderr == f"volfs: {one.backing} is not on a volfs mount\n"
    assert os.listxattr(one.backing) == []
