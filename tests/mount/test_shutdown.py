"""The end of a daemon: one path for every signal, and what becomes of files that are open or stuck."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount import mounts
from tests.mount.volume import PLAIN, Volume, eventually

_FAULTY = Path(__file__).with_name("faulty_store.py")
_END_S = 15.0

pytestmark = pytest.mark.skipif(PLAIN, reason="a plain directory has no daemon to end")


@pytest.fixture
def mounted(make_volume: Callable[..., Volume]) -> Iterator[Volume]:
    """A mount that is taken away by its own daemon."""
    made = make_volume()
    yield made.mount()
    assert made.discard() == []


def ended(volume: Volume, number: int) -> None:
    """Send the signal; the daemon ends and its mount is gone."""
    os.kill(volume.pid, number)
    eventually(lambda: not volume.is_running(), _END_S, f"the daemon ends after {number}")
    assert not mounts.is_mounted(volume.mountpoint)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_open_files_at_the_end(mounted: Volume, number: int) -> None:
    """What only grew is committed; half of a change is not shown but kept; the holder is named in the log."""
    volume, mount, back = mounted, mounted.mountpoint, mounted.backing
    (mount / "log").write_text("one\n")
    (mount / "good").write_text("good")
    log = os.open(mount / "log", os.O_WRONLY | os.O_APPEND)
    change = os.open(mount / "good", os.O_WRONLY)
    try:
        os.write(log, b"two\n")
        os.write(change, b"ba")
        ended(volume, number)
    finally:
        assert [_errno_of_close(fd) for fd in (log, change)] == [errno.ENOTCONN] * 2
    assert (back / "log").read_text() == "one\ntwo\n"
    assert (back / "good").read_text() == "good"
    tail = volume.log_tail()
    assert f"pid={os.getpid()}" in tail
    assert "left in the journal" in tail
    volume.remount()
    assert volume.status()["commit"]["kept"] == 1
    assert (
        volume.volfs("recover", "discard", "--yes", str(volume.mountpoint), _only_kept(volume)).returncode
        == 0
    )
    volume.unmount()


def _errno_of_close(fd: int) -> int:
    """What the application hears of a file whose mount is gone."""
    try:
        os.close(fd)
    except OSError as error:
        return error.errno or -1
    return 0


def _only_kept(volume: Volume) -> str:
    """The id of the one kept file."""
    document = json.loads(volume.volfs("recover", "list", "--json", str(volume.mountpoint)).stdout)
    (entry,) = document["kept"]
    return str(entry["id"])


def test_while_it_ends_nothing_new_is_taken(make_volume: Callable[..., Volume], tmp_path: Path) -> None:
    """Opens are refused with a clear errno; what is open goes on to its end, and is committed."""
    volume = make_volume("--commit", "background", environment={"VOLFS_TEST_FAULTS": str(tmp_path)})
    volume.mount_by(_FAULTY)
    mount = volume.mountpoint
    late = os.open(mount / "late", os.O_WRONLY | os.O_CREAT)
    (tmp_path / "upload.show").write_text("delay 2")
    (mount / "slow").write_text("slow")
    eventually(lambda: b"upload.show" in (tmp_path / "calls").read_bytes(), 10, "the commit has begun")
    os.kill(volume.pid, signal.SIGTERM)
    eventually(lambda: _refused(mount / "new") == errno.ESHUTDOWN, 5, "opens are refused")
    os.write(late, b"late")
    os.close(late)
    eventually(lambda: not volume.is_running(), _END_S, "the daemon ends")
    assert (volume.backing / "slow").read_text() == "slow"
    assert (volume.backing / "late").read_text() == "late"
    assert not (volume.backing / "new").exists()
    assert volume.leftovers() == []


def _refused(path: Path) -> int:
    try:
        path.touch()
    except OSError as error:
        return error.errno or -1
    return 0


def test_what_cannot_be_committed_in_time_stays(make_volume: Callable[..., Volume], tmp_path: Path) -> None:
    """B4: the drain timeout bounds the end; the bytes are in the journal, and the next mount commits them."""
    volume = make_volume(
        "--commit", "background", "--drain-timeout", "1", environment={"VOLFS_TEST_FAULTS": str(tmp_path)}
    )
    volume.mount_by(_FAULTY)
    (tmp_path / "upload.show").write_text("hang")
    (volume.mountpoint / "f").write_text("bytes")
    os.kill(volume.pid, signal.SIGTERM)
    eventually(lambda: not volume.is_running(), _END_S, "the daemon ends")
    assert not (volume.backing / "f").exists()
    assert len(volume.leftovers()) == 1
    (tmp_path / "upload.show").unlink()
    volume.mount()
    assert (volume.backing / "f").read_text() == "bytes"
    assert volume.status()["commit"]["recovered"] == 1
    volume.unmount()
