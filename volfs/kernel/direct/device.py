"""The device that the kernel is spoken to through, and the mount that it stands behind.

It opens and mounts by itself, without a helper, and so needs CAP_SYS_ADMIN; the
transport over pyfuse3 does not. `kernel.mounts` unmounts. What is said over the
device is `wire`.

*Invariants:* a descriptor that is handed out belongs to a mount that is there;
where mounting fails, nothing is left open.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import Final

from volfs.errors import SetupError
from volfs.kernel.mounts import FSTYPE

__all__ = ["mount", "open_device"]

_DEVICE: Final = "/dev/fuse"

_MS_RDONLY: Final = 1
_MS_NOSUID: Final = 2
_MS_NODEV: Final = 4

#: Of a directory, in octal, as the kernel reads it.
_ROOT_MODE: Final = "40000"

_WHAT_TO_DO: Final = {
    errno.EPERM: "run as root, or start the container with --cap-add SYS_ADMIN (and --security-opt "
    "apparmor=unconfined where AppArmor forbids mounts)",
    errno.EACCES: "let this user into the directories above it",
    errno.ENOENT: "make the directory first",
    errno.ENOTDIR: "name a directory",
    errno.ENODEV: "load the kernel module (modprobe fuse)",
    errno.EINVAL: "this kernel does not know one of the mount options: use a newer one",
}


def open_device() -> int:
    """The device, blocking and closed on exec; SetupError, with what to do."""
    try:
        return os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ENODEV, errno.ENXIO}:
            raise SetupError(
                f"there is no {_DEVICE}: load the kernel module (modprobe fuse), or start the container with "
                "--device /dev/fuse --cap-add SYS_ADMIN"
            ) from error
        raise SetupError(
            f"{_DEVICE} cannot be opened ({os.strerror(error.errno or 0)}): "
            "allow this user to read and write it, or start the container with --device /dev/fuse"
        ) from error


def mount(mountpoint: Path, source: bytes, *, allow_other: bool, read_only: bool) -> int:
    """Mount at a directory; answers the device's descriptor, blocking and closed on exec.

    The kernel's INIT waits there and must be answered, or who touches the mount waits. `source` is
    shown by mount and df. Closing the descriptor ends the session, not the mount. Raises SetupError.
    """
    device = open_device()
    options = [f"fd={device}", f"rootmode={_ROOT_MODE}", f"user_id={os.getuid()}", f"group_id={os.getgid()}"]
    options.append("default_permissions")
    if allow_other:
        options.append("allow_other")
    flags = _MS_NOSUID | _MS_NODEV | (_MS_RDONLY if read_only else 0)
    libc = ctypes.CDLL(None, use_errno=True)
    target, kind, data = os.fsencode(mountpoint), FSTYPE.encode(), ",".join(options).encode()
    if libc.mount(source, target, kind, ctypes.c_ulong(flags), data) != 0:
        number = ctypes.get_errno()
        os.close(device)
        raise SetupError(
            f"mounting at {mountpoint} failed ({os.strerror(number)}): "
            f"{_WHAT_TO_DO.get(number, 'see the kernel log (dmesg)')}"
        )
    return device
