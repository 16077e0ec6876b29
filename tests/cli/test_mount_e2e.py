"""The command line and the real daemon together: mount, use, look, unmount, and what a kill leaves."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import volfs_client

import volfs
from tests.cli.conftest import Bench
from volfs.kernel import mounts

Make = Callable[..., Bench]


def killed(pid: int) -> None:
    """Kill the daemon and wait until it is gone."""
    descriptor = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([descriptor], [], [], 10)
    os.close(descriptor)


def staged(one: Bench) -> list[Path]:
    """Files that wait in the backing's or the cache's staging directory."""
    roots = (one.backing / ".volfs", one.cache_dir / "staging")
    return [path for root in roots for path in root.rglob("*") if not path.is_dir()]


@pytest.mark.parametrize("cache", ["auto", "on"])
def test_round_trip(bench: Make, cache: str) -> None:
    """Mount, write, commit, unmount: every byte is in the backing, and nothing else is."""
    one = bench()
    one.mounted("--cache", cache)
    content = os.urandom(3_000_000)
    (one.mountpoint / "d").mkdir()
    (one.mountpoint / "d/f").write_bytes(content)
    committed = one.run("commit", one.mountpoint / "d")
    done = one.umount()

    assert (committed.returncode, committed.stderr) == (0, "")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (one.backing / "d/f").read_bytes() == content
    assert list(one.mountpoint.iterdir()) == []
    assert staged(one) == []
    assert one.daemons() == []


def test_status(bench: Make) -> None:
    """The document for machines has what is promised, the table shows it, and the client reads the same."""
    one = bench()
    pid = one.mounted("--cache", "on", "--cache-size", "3MiB")
    (one.mountpoint / "f").write_bytes(b"x" * 1000)
    (one.mountpoint / "f").read_bytes()
    document = json.loads(one.run("status", one.mountpoint, "--json").stdout)
    table = one.run("status", one.mountpoint).stdout
    client = volfs_client.status(one.mountpoint)
    is_volfs = volfs_client.is_volfs(one.mountpoint / "f")
    one.umount()

    assert document["version"] == volfs.__version__
    assert document["pid"] == client["pid"] == pid
    assert document["backing"] == str(one.backing)
    assert document["cache_dir"] == str(one.cache_dir)
    assert document["mode"] == {
        "cache": True, "commit": "close", "read_only": False, "change_detection": "inotify",
    }  # fmt: skip
    assert document["cache"]["limit_bytes"] == 3 << 20
    assert (document["commit"]["waiting"], document["commit"]["oldest_age_s"]) == (0, None)
    assert (document["conflicts"], document["errors"]) == (0, 0)
    assert is_volfs is True
    flat = " ".join(table.split())
    assert f"volfs {volfs.__version__}, pid {pid}, {document['transport']} (this process may mount)" in flat
    assert document["transport"] == "direct"
    assert "of 3.0 MiB" in flat
    assert "waiting 0 files" in flat


def test_a_second_daemon_on_the_cache_directory(bench: Make) -> None:
    """Two daemons never share a cache directory; the second says which one is in use."""
    one = bench()
    one.mounted()
    elsewhere = one.base / "elsewhere"
    elsewhere.mkdir()
    done = one.run("mount", one.backing, elsewhere, "--cache-dir", one.cache_dir)
    alive = (one.mountpoint / "f").write_text("x")
    clean = one.umount()

    assert done.returncode == 1
    assert f"the cache directory {one.cache_dir} is in use by another volfs daemon" in done.stderr
    assert done.stderr.count("\n") == 1
    assert mounts.find(elsewhere) is None
    assert (alive, clean.returncode) == (1, 0)


def test_a_mount_point_in_use(bench: Make) -> None:
    """A second mount on the same place is refused, names the first, and leaves it alone."""
    one = bench()
    one.mounted()
    done = one.run("mount", one.backing, one.mountpoint, "--cache-dir", one.base / "other")
    clean = one.umount()

    assert done.returncode == 1
    assert f"mount point {one.mountpoint} is in use: " in done.stderr
    assert f"run: volfs umount {one.mountpoint}" in done.stderr
    assert not (one.base / "other").exists()
    assert clean.returncode == 0


def test_backing_with_a_name_of_its_own(bench: Make) -> None:
    """A backing directory whose name has blanks, commas, accents and bytes that are no UTF-8 mounts."""
    one = bench()
    for name in (b"a, b=c", "é€".encode(), b"\xff", b"back\\slash"):
        backing = Path(os.fsdecode(os.path.join(os.fsencode(one.base), name)))
        backing.mkdir()
        done = one.run("mount", backing, one.mountpoint, "--cache-dir", one.base / f"c-{name.hex()}")
        assert (done.returncode, done.stderr) == (0, ""), name
        (one.mountpoint / "f").write_text("here")
        document = json.loads(one.run("status", one.mountpoint, "--json").stdout)
        table = one.run("status", one.mountpoint)
        done = one.umount()

        assert (done.returncode, done.stderr) == (0, ""), name
        assert document["backing"] == str(backing)
        assert (table.returncode, table.stderr) == (0, ""), name
        assert (backing / "f").read_text() == "here"


def test_read_only(bench: Make) -> None:
    """A read-only mount refuses changes with EROFS and unmounts cleanly; the backing gets no trace of it."""
    one = bench()
    (one.backing / "f").write_text("x")
    one.mounted("--read-only")
    with pytest.raises(OSError, match="Read-only file system"):
        (one.mountpoint / "g").touch()
    seen = (one.mountpoint / "f").read_text()
    done = one.umount()

    assert seen == "x"
    assert (done.returncode, done.stderr) == (0, "")
    assert [path.name for path in one.backing.iterdir()] == ["f"]


def test_busy(bench: Make) -> None:
    """A writer that has not closed is named; once it has, what it wrote is in the backing."""
    one = bench()
    one.mounted()
    code = "import sys; f = open(sys.argv[1], 'w', 1); f.write('late\\n'); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code, one.mountpoint / "f"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        busy = one.umount()
        writer.communicate(b"\n", 10)
    done = one.umount()

    assert busy.returncode == 1
    assert f"held by pid {writer.pid} (" in busy.stderr
    assert f": {one.mountpoint}/f" in busy.stderr
    assert (done.returncode, done.stderr) == (0, "")
    assert (one.backing / "f").read_text() == "late\n"


def test_killed_and_mounted_again(bench: Make) -> None:
    """A killed daemon's mount is dead for every verb but mount, which takes it away and goes on."""
    one = bench()
    killed(one.mounted())
    (told,) = [one.run("status", one.mountpoint)]
    again = one.mount()
    (one.mountpoint / "f").write_text("x")
    done = one.umount()

    assert "has died" in told.stderr
    assert (again.returncode, done.returncode) == (0, 0)
    assert (one.backing / "f").read_text() == "x"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_cleanly(bench: Make, number: signal.Signals) -> None:
    """SIGTERM and SIGINT drain the queue, unmount, and end with code 0, in the foreground too."""
    one = bench()
    pid = one.mounted("--commit", "background")
    (one.mountpoint / "f").write_text("x")
    descriptor = os.pidfd_open(pid)
    os.kill(pid, number)
    ended = select.select([descriptor], [], [], 30)[0]
    os.close(descriptor)

    assert ended
    assert json.loads((one.cache_dir / "last-exit.json").read_text()) == {"pid": pid, "code": 0}
    assert mounts.find(one.mountpoint) is None
    assert (one.backing / "f").read_text() == "x"


@pytest.fixture
def small_backing(bench: Make) -> Iterator[Bench]:
    """A backing directory of 2 MiB."""
    one = bench()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", one.backing], check=True)
    yield one
    while mounts.find(one.mountpoint) is not None:
        mounts.unmount(one.mountpoint, lazy=True)
    mounts.unmount(one.backing, lazy=True)


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may mount a small file system; make test runs as root"
)
def test_what_cannot_be_committed_stays_in_the_journal(small_backing: Bench) -> None:
    """A full backing: umount ends with 3 and says why; with room again the next mount commits by itself."""
    one = small_backing
    options = ("--cache", "on", "--commit", "background")
    content = os.urandom(1 << 20)
    one.mounted(*options)
    (one.backing / "hog").write_bytes(b"x" * (1600 << 10))
    (one.mountpoint / "f").write_bytes(content)
    done = one.umount("--timeout", "5")
    before = (one.backing / "f").exists()
    (one.backing / "hog").unlink()
    one.mounted(*options)
    recovered = json.loads(one.run("status", one.mountpoint, "--json").stdout)["commit"]["recovered"]
    clean = one.umount()

    assert done.returncode == 3
    assert done.stderr == (
        f"volfs: {one.mountpoint} is taken away, but something stays in the journal "
        "(No space left on device); the next mount of the same directories commits it, "
        "or keeps it for `volfs recover`\n"
    )
    assert before is False
    assert (recovered, clean.returncode) == (1, 0)
    assert (one.backing / "f").read_bytes() == content
