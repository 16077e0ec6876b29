"""Whether a mount can start, before anything is touched; each obstacle has its own line.

It does not mount and does not take the cache directory's lock. It changes one
thing: a dead mount, left by a daemon that was killed, is taken away, if need be
with what is left of that daemon.

*Invariants:* every message is one line that ends in what to do.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Final

from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.kernel import dying, mounts
from volfs.kernel.direct.device import open_device
from volfs.telemetry import get_logger

__all__ = ["check", "may_mount"]

_log = get_logger("preflight")

_FUSE_CONF: Final = Path("/etc/fuse.conf")
_PROC_STATUS: Final = Path("/proc/self/status")
_CAP_SYS_ADMIN: Final = 21

#: A place on a file system whatever the path to it: (major, minor), path from that file system's root.
Location = tuple[tuple[int, int], PurePath]


def check(config: MountConfig) -> None:
    """Raise SetupError for the first obstacle; nothing was touched then, but a dead mount taken away."""
    os.close(open_device())
    privileged = may_mount()
    if not privileged:
        if config.transport == "direct":
            raise SetupError(
                "--transport direct mounts by itself, which needs CAP_SYS_ADMIN: run as root, or leave it to "
                "--transport auto"
            )
        _check_helper()
    dying.end(config.mountpoint, config.cache_dir / "lock")
    _check_mountpoint(config.mountpoint, privileged=privileged)
    _check_backing(config.backing)
    _check_apart(config)
    if config.allow_other and not privileged:
        _check_allow_other()


def may_mount() -> bool:
    """Whether this process mounts by itself. Root that may not is an obstacle: the helper cannot either."""
    line = next(line for line in _PROC_STATUS.read_text().splitlines() if line.startswith("CapEff:"))
    privileged = bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    if os.geteuid() == 0 and not privileged:
        raise SetupError(
            "root lacks the capability CAP_SYS_ADMIN here: start the container with --cap-add SYS_ADMIN "
            "(and --security-opt apparmor=unconfined where AppArmor forbids mounts)"
        )
    return privileged


def _check_helper() -> None:
    if shutil.which("fusermount3") is None:
        raise SetupError(
            "fusermount3 is missing, and users other than root need it to mount: install the package fuse3"
        )


def _check_mountpoint(mountpoint: Path, *, privileged: bool) -> None:
    while (mount := mounts.find(mountpoint)) is not None:
        if not mounts.is_dead(mountpoint):
            action = (
                f"run: volfs umount {mountpoint}"
                if mount.is_volfs
                else "unmount it, or choose another directory"
            )
            raise SetupError(
                f"mount point {mountpoint} is in use: {mount.source} ({mount.fstype}) is mounted there; "
                f"{action}"
            )
        try:
            mounts.unmount(mountpoint, lazy=True)
        except OSError as error:
            raise SetupError(
                f"mount point {mountpoint} holds a dead mount that this user may not take away: "
                f"run as root: umount -l {mountpoint}"
            ) from error
        _log.warning("took away a dead mount", mountpoint=str(mountpoint), source=mount.source)
    mode = _mode(mountpoint, "mount point", f"create it: mkdir -p {mountpoint}")
    if not stat.S_ISDIR(mode):
        raise SetupError(f"mount point {mountpoint} is not a directory: name a directory")
    if not privileged and not os.access(mountpoint, os.W_OK):
        raise SetupError(
            f"mount point {mountpoint} is not writable by this user, and fusermount3 asks for that: "
            "choose a directory of yours"
        )


def _check_backing(backing: Path) -> None:
    mode = _mode(backing, "backing directory", "check the name, and that its file system is mounted")
    if not stat.S_ISDIR(mode):
        raise SetupError(f"backing {backing} is not a directory: name the directory that holds the files")
    try:
        with os.scandir(backing) as entries:
            next(entries, None)
    except OSError as error:
        raise SetupError(
            f"backing directory {backing} cannot be read ({os.strerror(error.errno or 0)}): "
            "give this user read and search permission, or run as its owner"
        ) from error


def _mode(path: Path, what: str, if_missing: str) -> int:
    try:
        return path.stat().st_mode
    except OSError as error:
        if error.errno == errno.ENOENT:
            raise SetupError(f"{what} {path} does not exist: {if_missing}") from error
        raise SetupError(
            f"{what} {path} cannot be reached ({os.strerror(error.errno or 0)}): "
            "check the path's permissions and that its file system is alive"
        ) from error


def _check_apart(config: MountConfig) -> None:
    places = (
        ("mount point", config.mountpoint),
        ("backing directory", config.backing),
        ("cache directory", config.cache_dir),
    )
    for name, path in places:
        for other_name, other in places:
            if name != other_name and _is_inside(path, other):
                relation = "is" if path == other else "lies inside"
                raise SetupError(
                    f"the {name} {path} {relation} the {other_name} {other}: "
                    "choose directories apart from each other"
                )


def _is_inside(path: Path, directory: Path) -> bool:
    """Whether `path` can be reached through `directory`, also by way of bind mounts."""
    identity = _identity(directory)
    if identity is not None and any(_identity(above) == identity for above in (path, *path.parents)):
        return True
    device, place = _location(path)
    return any(
        device == other_device and (place == other or other in place.parents)
        for other_device, other in _reachable(directory)
    )


def _reachable(directory: Path) -> Iterator[Location]:
    yield _location(directory)
    for mount in mounts.below(directory):
        yield mount.device, mount.root


def _location(path: Path) -> Location:
    # The topmost mount on the longest prefix; `/` always matches, except in a chroot without it.
    around = max(
        (mount for mount in reversed(mounts.mounts()) if mount.mountpoint in (path, *path.parents)),
        key=lambda mount: len(mount.mountpoint.parts),
        default=None,
    )
    if around is None:
        return (-1, -1), path
    return around.device, around.root / path.relative_to(around.mountpoint)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None  # not there yet, like a new cache directory: its parents decide
    return found.st_dev, found.st_ino


def _check_allow_other() -> None:
    try:
        lines = _FUSE_CONF.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    if "user_allow_other" not in (line.strip() for line in lines):
        raise SetupError(
            f"--allow-other needs the line user_allow_other in {_FUSE_CONF}: add it as root, "
            "or mount with --no-allow-other"
        )
