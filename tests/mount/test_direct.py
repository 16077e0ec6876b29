"""What only the direct transport does, or does by itself where the other has libfuse for it."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.mount import mounts
from tests.mount.volume import PLAIN, Volume, eventually

pytestmark = [
    pytest.mark.usefixtures("guarded"),
    pytest.mark.skipif(PLAIN, reason="there is no transport without a mount"),
]

MakeVolume = Callable[..., Volume]


@pytest.fixture
def direct(make_volume: MakeVolume) -> Volume:
    return make_volume("--transport", "direct").mount()


def test_the_status_names_the_transport(direct: Volume) -> None:
    """It is the one that was asked for."""
    assert direct.status()["transport"] == "direct"


def test_who_only_reads_is_not_flushed(direct: Volume) -> None:
    """A close of a descriptor that only reads asks nothing, one that may write is told of as ever."""
    path = direct.mountpoint / "f"
    path.write_bytes(b"x")
    before = direct.status()["operations"]["flush"]
    for _ in range(10):
        assert path.read_bytes() == b"x"
    assert direct.status()["operations"]["flush"] == before
    os.close(os.open(path, os.O_RDWR))
    assert direct.status()["operations"]["flush"] == before + 1


def test_attributes_that_must_or_must_not_be_there(direct: Volume) -> None:
    """setxattr(2) with XATTR_CREATE and XATTR_REPLACE does what it was told, or fails with the true errno."""
    path = direct.mountpoint / "f"
    path.write_bytes(b"")
    with pytest.raises(OSError) as missing:
        os.setxattr(path, "user.a", b"1", os.XATTR_REPLACE)
    assert missing.value.errno == errno.ENODATA
    os.setxattr(path, "user.a", b"12345", os.XATTR_CREATE)
    with pytest.raises(OSError) as there:
        os.setxattr(path, "user.a", b"2", os.XATTR_CREATE)
    assert there.value.errno == errno.EEXIST
    os.setxattr(path, "user.a", b"3", os.XATTR_REPLACE)
    assert os.getxattr(path, "user.a") == b"3"
    assert os.listxattr(path) == ["user.a"]


def test_a_connection_that_is_aborted_ends_the_daemon(direct: Volume) -> None:
    """With a file open, an abort is the mount's end: the daemon goes, and nothing hangs."""
    path = direct.mountpoint / "f"
    path.write_bytes(b"x" * 100_000)
    direct.settle()
    with path.open("rb") as file:
        mounts.abort(direct.mountpoint)
        with pytest.raises(OSError) as failure:
            os.stat(path.with_name("other"))
        assert failure.value.errno in (errno.ENOTCONN, errno.ECONNABORTED)
        eventually(lambda: not mounts.is_running(direct.pid), 20, "the daemon ended")
        with pytest.raises(OSError) as failure:
            file.read(1)
        assert failure.value.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
    mounts.detach(direct.mountpoint)


def test_a_mount_that_another_took_away(direct: Volume) -> None:
    """After an unmount by hand the daemon ends, with everything committed."""
    (direct.mountpoint / "f").write_bytes(b"kept")
    mounts.detach(direct.mountpoint)
    eventually(lambda: not mounts.is_running(direct.pid), 20, "the daemon ended")
    assert (direct.backing / "f").read_bytes() == b"kept"


def test_a_signal_while_a_file_is_open(direct: Volume) -> None:
    """SIGTERM ends the daemon and its mount while a program has a file open."""
    handle = os.open(direct.mountpoint / "f", os.O_CREAT | os.O_WRONLY)
    os.write(handle, b"x")
    os.kill(direct.pid, signal.SIGTERM)
    eventually(lambda: not mounts.is_running(direct.pid), 40, "the daemon ended")
    assert not mounts.is_mounted(direct.mountpoint)
    with pytest.raises(OSError):
        os.fsync(handle)
    with suppress(OSError):
        os.close(handle)
