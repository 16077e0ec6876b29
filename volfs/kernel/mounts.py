"""The machine's mount table: what is mounted where, who holds it, how to take it away.

It does not mount (the transports do) and it holds no state. `kernel.tuning` sets
the knobs of a mount once it is there.

*Invariants:* nothing here asks a mounted file system anything, except `is_dead`,
so that a hung mount cannot hang its caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from volfs.config import resolve_mountpoint

__all__ = ["FSTYPE", "Holder", "Mount", "below", "find", "holders", "is_dead", "mounts", "unmount"]

#: What the mount table calls our mounts: `fuse.` and the subtype option that the transport passes.
FSTYPE: Final = "fuse.volfs"

_MOUNTINFO: Final = "/proc/self/mountinfo"
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8
_OCTAL: Final = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    device: tuple[int, int]  #: major, minor
    root: Path  #: directory of the mounted file system that shows here; not `/` for a bind mount
    mountpoint: Path
    fstype: str
    source: str

    @property
    def is_volfs(self) -> bool:
        return self.fstype == FSTYPE


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that keeps a mount busy, and one path by which it does."""

    pid: int
    command: str
    path: str


def mounts(table: bytes | None = None) -> list[Mount]:
    """The mount table, in the order of mounting; a line that is not understood is left out."""
    if table is None:
        table = Path(_MOUNTINFO).read_bytes()
    return [mount for line in table.splitlines() if (mount := _parse(line)) is not None]


def find(mountpoint: Path) -> Mount | None:
    """What is mounted exactly here, the topmost if several are; None if nothing is."""
    resolved = resolve_mountpoint(mountpoint)
    return next((mount for mount in reversed(mounts()) if mount.mountpoint == resolved), None)


def below(mountpoint: Path) -> list[Mount]:
    """Mounts on directories inside this one."""
    resolved = resolve_mountpoint(mountpoint)
    return [mount for mount in mounts() if resolved in mount.mountpoint.parents]


def is_dead(path: Path) -> bool:
    """Whether the daemon of the FUSE mount at `path` is gone (ENOTCONN)."""
    try:
        os.statvfs(path)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


def holders(mountpoint: Path) -> list[Holder]:
    """Processes that keep the mount busy, as far as this user may look into them."""
    mount = find(mountpoint)
    if mount is None:
        return []
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and (path := _held(entry.path, mount)):
            found.append(Holder(int(entry.name), _command(entry.path), path))
    return sorted(found, key=lambda holder: holder.pid)


def unmount(mountpoint: Path, *, lazy: bool) -> None:
    """Take away what is mounted here. Lazily: at once from the tree, for good when nobody holds it.

    Raises OSError; EBUSY says that a process holds it.
    """
    resolved = resolve_mountpoint(mountpoint)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.umount2(os.fsencode(resolved), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazy else 0)) == 0:
        return
    number = ctypes.get_errno()
    # EPERM: not privileged; the set-uid helper may unmount what this user mounted.
    helper = shutil.which("fusermount3") if number == errno.EPERM else None
    if helper is None:
        raise OSError(number, os.strerror(number), str(resolved))
    done = subprocess.run(
        [helper, "-u", *(["-z"] if lazy else []), "--", str(resolved)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        env={**os.environ, "LC_ALL": "C"},
        check=False,
    )
    if done.returncode != 0:
        # The helper has no exit code for it; its text is the C library's for EBUSY.
        busy = os.strerror(errno.EBUSY) in done.stderr
        raise OSError(errno.EBUSY if busy else errno.EPERM, done.stderr.strip() or helper, str(resolved))


def _parse(line: bytes) -> Mount | None:
    # 36 35 98:0 /root /mount/point rw,noatime master:1 - ext3 /dev/root rw,errors=continue
    left, separator, right = line.partition(b" - ")
    fields, tail = left.split(b" "), right.split(b" ")
    if not separator or len(fields) < 6 or len(tail) < 2:
        return None
    major, _, minor = fields[2].partition(b":")
    return Mount(
        device=(int(major), int(minor)),
        root=Path(_unescape(fields[3])),
        mountpoint=Path(_unescape(fields[4])),
        fstype=_unescape(tail[0]),
        source=_unescape(tail[1]),
    )


def _unescape(field: bytes) -> str:
    return os.fsdecode(_OCTAL.sub(lambda match: bytes([int(match[1], 8)]), field))


def _held(process: str, mount: Mount) -> str | None:
    """A path under the mount that this process has open, mapped or as a directory of its own."""
    prefix = os.fspath(mount.mountpoint)
    for link in _links(process):
        with contextlib.suppress(OSError):
            target = os.readlink(link)
            if target == prefix or target.startswith(prefix + "/"):
                return target
    device = f"{mount.device[0]:02x}:{mount.device[1]:02x}"
    with contextlib.suppress(OSError), open(f"{process}/maps", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.rstrip("\n").split(maxsplit=5)
            if len(fields) == 6 and fields[3] == device:
                return fields[5]
    return None


def _links(process: str) -> Iterator[str]:
    yield from (f"{process}/{kind}" for kind in ("cwd", "root", "exe"))
    with contextlib.suppress(OSError), os.scandir(f"{process}/fd") as descriptors:
        for descriptor in descriptors:
            yield descriptor.path


def _command(process: str) -> str:
    try:
        with open(f"{process}/cmdline", "rb") as file:
            words = file.read(4096).split(b"\0")
        return os.fsdecode(b" ".join(word for word in words if word)) or "?"
    except OSError:
        return "?"
