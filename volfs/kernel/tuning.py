"""Knobs of a FUSE mount that only files under /sys turn, set once after mounting.

It does not decide whether a mount is fit to run: everything here is for speed,
and what the machine refuses is said, not raised.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from volfs.kernel.mounts import find

__all__ = ["READ_AHEAD_KIB", "connections", "fuse_connection", "tune"]

#: The largest request that the kernel sends. Its own default of 128 KiB asks eight times for each MiB.
READ_AHEAD_KIB: Final = 1024
#: Read-ahead requests in flight. The kernel's default of 12 keeps one fast reader waiting.
MAX_BACKGROUND: Final = 64
#: Where the kernel calls the device congested: three quarters, its own proportion.
CONGESTION_THRESHOLD: Final = 48

_CONTROL: Final = Path("/sys/fs/fuse/connections")


def fuse_connection(mountpoint: Path) -> int | None:
    """The number of the FUSE connection behind a mount, a name under /sys/fs/fuse/connections."""
    mount = find(mountpoint)
    if mount is None or not mount.fstype.startswith("fuse"):
        return None
    # The kernel's own encoding, which differs from makedev(3) for minors above 255.
    return mount.device[0] << 20 | mount.device[1]


def tune(mountpoint: Path) -> dict[str, str]:
    """Set what may be set. Says for each knob the value, or `refused: why`."""
    mount = find(mountpoint)
    connection = fuse_connection(mountpoint)
    if mount is None or connection is None:
        return {}
    device = f"{mount.device[0]}:{mount.device[1]}"
    said = {"read_ahead_kb": _write(Path("/sys/class/bdi", device, "read_ahead_kb"), READ_AHEAD_KIB)}
    try:
        with connections() as control:
            here = control / str(connection)
            said["max_background"] = _write(here / "max_background", MAX_BACKGROUND)
            said["congestion_threshold"] = _write(here / "congestion_threshold", CONGESTION_THRESHOLD)
    except OSError as error:
        said["max_background"] = said["congestion_threshold"] = _refusal(error)
    return said


@contextlib.contextmanager
def connections() -> Iterator[Path]:
    """The directory of FUSE connections; mounted aside for a moment where the machine has not done it.

    systemd mounts it at boot; containers and small machines have nothing there.
    """
    if find(_CONTROL) is not None:
        yield _CONTROL
        return
    libc = ctypes.CDLL(None, use_errno=True)
    with tempfile.TemporaryDirectory(prefix="volfs-fusectl-") as aside:
        target = os.fsencode(aside)
        if libc.mount(b"fusectl", target, b"fusectl", 0, None) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        try:
            yield Path(aside)
        finally:
            libc.umount2(target, 2)


def _write(knob: Path, value: int) -> str:
    try:
        # No O_CREAT: a knob that is not there is a refusal.
        descriptor = os.open(knob, os.O_WRONLY)
        try:
            os.write(descriptor, b"%d\n" % value)
        finally:
            os.close(descriptor)
    except OSError as error:
        return _refusal(error)
    return str(value)


def _refusal(error: OSError) -> str:
    return f"refused: {os.strerror(error.errno or 0)}"
