"""`.volfs` in the store: what mounts that are gone left is swept, what live ones have is not."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volfs.store.reserved import Reserved

Make = Callable[[str], Reserved]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    """The descriptor of a volume's root."""
    fd = os.open(tmp_path, os.O_PATH | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def left_by_a_mount(root: int, tmp_path: Path, *names: str, hours: float) -> Path:
    """A mount that copied and staged, and then was killed so many hours ago."""
    gone = Reserved(root, "gone")
    directory = tmp_path / ".volfs/gone"
    for name in names:
        (directory / name).write_bytes(b"bytes")
    gone.close()  # the kernel gives its lock back, as after a kill
    then = time.time() - hours * 3600
    os.utime(tmp_path / ".volfs/owners/gone", (then, then))
    return directory


def test_copies_of_a_mount_that_is_gone_are_swept(root: int, tmp_path: Path) -> None:
    """W6b: and with them its directory."""
    directory = left_by_a_mount(root, tmp_path, "copy-1", "copy-2", hours=2)
    ours = Reserved(root, "ours")
    ours.sweep()
    assert not directory.exists()
    assert os.listdir(tmp_path / ".volfs/owners") == ["ours"]
    ours.remove()
    ours.close()
    assert os.listdir(tmp_path) == []


def test_staged_files_of_a_mount_that_is_gone_stay(root: int, tmp_path: Path) -> None:
    """Somebody was promised them; its own next mount commits them."""
    directory = left_by_a_mount(root, tmp_path, "copy-1", "0123abcd", hours=1000)
    ours = Reserved(root, "ours")
    ours.sweep()
    assert os.listdir(directory) == ["0123abcd"]
    ours.remove()
    ours.close()


def test_what_was_being_exchanged_stays(root: int, tmp_path: Path) -> None:
    """W6b, W7e: it may be another's version, and only the mount that is gone can tell."""
    directory = left_by_a_mount(root, tmp_path, "copy-1", "swap-2", hours=1000)
    (directory / "lane-3").mkdir()
    (directory / "lane-3/swap-4").write_bytes(b"theirs")
    (directory / "lane-3/copy-5").write_bytes(b"bytes")
    ours = Reserved(root, "ours")
    ours.sweep()
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert found == {"swap-2", "lane-3/swap-4"}
    ours.remove()
    ours.close()


def test_a_mount_that_lives_keeps_everything(root: int, tmp_path: Path) -> None:
    """Its lock says so, however old its heartbeat is."""
    live = Reserved(root, "live")
    (tmp_path / ".volfs/live/copy-1").write_bytes(b"bytes")
    then = time.time() - 1e6
    os.utime(tmp_path / ".volfs/owners/live", (then, then))
    ours = Reserved(root, "ours")
    ours.sweep()
    assert (tmp_path / ".volfs/live/copy-1").exists()
    ours.remove()
    ours.close()
    assert (tmp_path / ".volfs/live/copy-1").exists()
    live.close()


def test_without_locks_the_heartbeat_decides(root: int, tmp_path: Path) -> None:
    """Where locks do not reach across hosts, a lock that can be had proves nothing."""
    directory = left_by_a_mount(root, tmp_path, "copy-1", hours=0.5)
    ours = Reserved(root, "ours")
    ours.sweep()
    assert os.listdir(directory) == ["copy-1"]
    ours.close()


def test_own_copies_are_swept_when_it_is_said(root: int, tmp_path: Path) -> None:
    """W6b: those of a daemon with our cache directory, which is locked, so that it cannot live; not before
    the versions of others among them were kept, and none of this daemon's own.
    """
    directory = left_by_a_mount(root, tmp_path, "copy-1", "swap-1", "0123abcd", hours=0)
    (directory / "lane-3").mkdir()
    (directory / "lane-3/swap-2").write_bytes(b"bytes")
    again = Reserved(root, "gone")
    os.mkdir("lane-a", dir_fd=again.staging)
    for name in ("swap-3", "lane-3/swap-4", "lane-a/copy-5"):
        (directory / name).write_bytes(b"bytes")
    (directory / "swap-1").unlink()  # it was another's version, and has a name now
    assert (directory / "copy-1").exists()
    again.clear_left()
    found = {str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file()}
    assert found == {"0123abcd", "swap-3", "lane-3/swap-4", "lane-a/copy-5"}
    again.clear_left()
    again.remove()
    again.close()
    assert os.listdir(directory) == ["0123abcd"]


def test_a_directory_without_an_owner_is_left_by_an_older_volfs(root: int, tmp_path: Path) -> None:
    """It goes when nothing has changed in it for long."""
    for name, hours in (("old", 2.0), ("new", 0.0)):
        directory = tmp_path / ".volfs" / name
        directory.mkdir(parents=True)
        then = time.time() - hours * 3600
        os.utime(directory, (then, then))
    ours = Reserved(root, "ours")
    ours.sweep()
    assert sorted(os.listdir(tmp_path / ".volfs")) == ["new", "ours", "owners"]
    ours.close()


def test_a_copy_that_could_not_be_discarded_goes_at_the_end(root: int, tmp_path: Path) -> None:
    """W6b: an unmount that leaves nothing to commit leaves nothing in the store."""
    ours = Reserved(root, "ours")
    (tmp_path / ".volfs/ours/copy-1").write_bytes(b"bytes")
    ours.remove()
    ours.close()
    assert os.listdir(tmp_path) == []
