"""A real mount, spoken to by hand: what the tests beside this one take for the protocol is the kernel's."""

from __future__ import annotations

import errno
import os
import select
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.kernel import mounts
from volfs.kernel.direct import device
from volfs.kernel.direct.transport import Direct
from volfs.kernel.direct.wire import encode, handshake, notices
from volfs.kernel.direct.wire.decode import decode
from volfs.kernel.direct.wire.flags import ROOT_ID, InitFlag
from volfs.kernel.direct.wire.opcodes import Opcode
from volfs.kernel.direct.wire.requests import Request

root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount by itself; make test runs as root")

_ROOT = encode.Attr(ROOT_ID, 0, 0, 0, 0, 0, 0, 0, 0, stat.S_IFDIR | 0o755, 2, 0, 0)
_WISHES = handshake.Wishes(
    wanted=InitFlag.ASYNC_READ | InitFlag.PARALLEL_DIROPS | InitFlag.MAX_PAGES | InitFlag.HAS_RESEND
)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    """A descriptor of the device, and the directory it is mounted at."""
    fd = device.mount(tmp_path, b"volfs:a,b c", allow_other=True, read_only=True)
    try:
        yield fd, tmp_path
    finally:
        # Who still waits for an answer gets an error.
        os.close(fd)
        if mounts.find(tmp_path) is not None:
            mounts.unmount(tmp_path, lazy=True)


def _next(fd: int) -> Request[Any]:
    ready, _, _ = select.select([fd], [], [], 20)
    assert ready, "the kernel asks nothing"
    buffer = bytearray((1 << 20) + 4096)
    return decode(memoryview(buffer)[: os.readv(fd, [buffer])])


@root
def test_a_session_by_hand(mounted: tuple[int, Path]) -> None:
    """The kernel's INIT is agreed on, a lookup is answered ENOENT, a notice is taken, and the end is told."""
    fd, mountpoint = mounted
    found = mounts.find(mountpoint)
    assert found is not None
    assert (found.fstype, found.source) == ("fuse.volfs", "volfs:a,b c")

    first = _next(fd)
    assert first.opcode == Opcode.INIT
    agreed = handshake.negotiate(first.body, _WISHES)
    assert agreed is not None
    assert agreed.flags & _WISHES.wanted & ~InitFlag.HAS_RESEND == _WISHES.wanted & ~InitFlag.HAS_RESEND
    os.writev(fd, encode.reply(first.unique, handshake.accepted(agreed)))

    asks = "import os, sys\ntry: os.stat(sys.argv[1])\nexcept OSError as error: sys.exit(error.errno)"
    caller = subprocess.Popen([sys.executable, "-S", "-c", asks, mountpoint / "missing"])
    asked = []
    while "LOOKUP" not in asked:
        request = _next(fd)
        asked.append(Opcode(request.opcode).name)
        if request.opcode == Opcode.GETATTR:
            os.writev(fd, encode.reply(request.unique, encode.attributes(_ROOT, 60.0)))
        else:
            assert (request.nodeid, request.pid, request.body) == (ROOT_ID, caller.pid, b"missing")
            os.write(fd, encode.error(request.unique, errno.ENOENT))
    assert caller.wait(20) == errno.ENOENT

    os.writev(fd, notices.inval_inode(ROOT_ID))
    with pytest.raises(OSError) as caught:
        os.writev(fd, notices.inval_inode(12345))
    assert caught.value.errno == errno.ENOENT

    mounts.unmount(mountpoint, lazy=True)
    with pytest.raises(OSError) as caught:
        os.read(fd, agreed.buffer_size)
    assert caught.value.errno == errno.ENODEV


@root
@pytest.mark.parametrize(("name", "said"), [("missing", "make the directory"), ("file", "name a directory")])
def test_a_place_that_is_no_directory(tmp_path: Path, name: str, said: str) -> None:
    """The message says what to do, and no descriptor is left open."""
    (tmp_path / "file").touch()
    before = os.listdir("/proc/self/fd")
    with pytest.raises(SetupError, match=said):
        device.mount(tmp_path / name, b"volfs", allow_other=True, read_only=False)
    assert os.listdir("/proc/self/fd") == before


@root
def test_without_the_capability(tmp_path: Path) -> None:
    """Root that may not mount is told which capability is missing."""
    program = (
        "import sys, pathlib\nfrom volfs.kernel.direct.device import mount\n"
        "mount(pathlib.Path(sys.argv[1]), b'volfs', allow_other=False, read_only=False)"
    )
    done = subprocess.run(
        ["setpriv", "--bounding-set", "-sys_admin", sys.executable, "-c", program, tmp_path],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "SetupError" in done.stderr
    assert "--cap-add SYS_ADMIN" in done.stderr


def test_a_closed_devices_number_is_nobodys(tmp_path: Path) -> None:
    """A notice that comes late is written to nothing, and not to a file that was opened meanwhile."""
    places = dict.fromkeys(("backing", "mountpoint", "cache_dir"), tmp_path)
    direct = Direct(MountConfig.model_validate(places))
    direct._device = os.open(tmp_path / "device", os.O_CREAT | os.O_RDWR)
    sender = direct.sender
    direct.close(unmount=False)
    with (tmp_path / "another").open("wb") as another:
        sender.content(1)
        sender.attributes(1)
        sender.entry(1, b"n", 0)
        assert another.fileno() != direct._device
    assert (tmp_path / "another").read_bytes() == (tmp_path / "device").read_bytes() == b""
    os.close(direct._device)
