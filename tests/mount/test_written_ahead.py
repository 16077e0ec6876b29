"""Large files over a network are copied while they are written: what failures and a crash make of that."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount import mounts
from tests.mount.volume import PLAIN, Volume, eventually

_FAULTY = Path(__file__).with_name("faulty_store.py")
_M = 1 << 20

#: Enough that a copy begins, and some parts more.
_SIZE = 100 * _M

pytestmark = pytest.mark.skipif(PLAIN, reason="a plain directory has no daemon")


@pytest.fixture
def remote(make_volume: Callable[..., Volume], tmp_path: Path) -> Volume:
    """A mount in close mode, whose store is taken for one over a network."""
    environment = {"VOLFS_TEST_FAULTS": str(tmp_path), "VOLFS_TEST_STORE": "remote"}
    return make_volume(mode="cached", environment=environment).mount_by(_FAULTY)


def operations(faults: Path) -> list[str]:
    """The calls so far that move bytes or names of a commit."""
    lines = (faults / "calls").read_text().splitlines()
    return [name for line in lines if (name := line.split()[0]).startswith(("begin", "transfer", "upload"))]


def write(path: Path, size: int) -> tuple[int, bytes]:
    """An open file, as it is written in pieces of a MiB; what it holds."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    piece = os.urandom(_M)
    data = b"".join((b"%08d" % number) + piece[8:] for number in range(size // _M))
    for offset in range(0, size, _M):
        os.write(fd, data[offset : offset + _M])
    return fd, data


def digest(data: bytes) -> str:
    """For a failure that can be read."""
    return hashlib.sha256(data).hexdigest()


def test_a_large_file_is_copied_while_it_is_written(remote: Volume, tmp_path: Path) -> None:
    """W3b: parts arrive before close; a header that is written last is in the commit; a small file is not
    copied early.
    """
    (remote.mountpoint / "small").write_bytes(bytes(_M))
    assert operations(tmp_path) == ["upload", "upload.show"]
    fd, data = write(remote.mountpoint / "f", _SIZE)
    eventually(lambda: "transfer.bring" in operations(tmp_path), 30, "a part is copied")
    os.pwrite(fd, b"header", 0)
    assert not (remote.backing / "f").exists()
    os.close(fd)
    assert operations(tmp_path)[-2:] == ["transfer.finish", "upload.show"]
    assert digest((remote.backing / "f").read_bytes()) == digest(b"header" + data[6:])
    assert remote.leftovers() == []


@pytest.mark.parametrize("operation", ["begin", "transfer.bring"])
def test_a_store_that_fails_meanwhile(remote: Volume, tmp_path: Path, operation: str) -> None:
    """W3b: neither the writes nor close hear of it; the commit copies all."""
    (tmp_path / operation).write_text("EIO")
    fd, data = write(remote.mountpoint / "f", _SIZE)
    eventually(lambda: not (tmp_path / operation).exists(), 30, "it was met")
    os.close(fd)
    assert digest((remote.backing / "f").read_bytes()) == digest(data)
    assert remote.leftovers() == []


def test_a_removed_file_leaves_no_copy(remote: Volume, tmp_path: Path) -> None:
    """W3b: it goes with the name, while the file is still being written."""
    fd, _ = write(remote.mountpoint / "f", _SIZE)
    eventually(lambda: "transfer.bring" in operations(tmp_path), 30, "a part is copied")
    os.unlink(remote.mountpoint / "f")
    os.write(fd, b"more")
    os.close(fd)
    eventually(lambda: remote.leftovers() == [], 30, "the copy is taken away")
    assert list(remote.backing.iterdir()) == [remote.backing / ".volfs"]


def test_a_crash_before_it_is_finished(make_volume: Callable[..., Volume], tmp_path: Path) -> None:
    """W6: what close acknowledged is committed by the next mount, and the copy is swept."""
    environment = {"VOLFS_TEST_FAULTS": str(tmp_path), "VOLFS_TEST_STORE": "remote"}
    volume = make_volume(mode="background", environment=environment).mount_by(_FAULTY)
    (tmp_path / "transfer.finish").write_text("hang")
    fd, data = write(volume.mountpoint / "f", _SIZE)
    os.close(fd)
    eventually(lambda: "transfer.finish" in operations(tmp_path), 30, "the commit is under way")
    assert len(list((volume.backing / ".volfs").rglob("copy-*"))) == 1
    volume.kill()
    (tmp_path / "transfer.finish").unlink()
    mounts.detach(volume.mountpoint)
    volume.mount_by(_FAULTY)
    assert list((volume.backing / ".volfs").rglob("copy-*")) == []
    eventually(lambda: volume.status()["commit"]["replaying"] == 0, 30, "all is replayed")
    assert digest((volume.backing / "f").read_bytes()) == digest(data)
    assert volume.leftovers() == []
