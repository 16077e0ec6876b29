"""The mount as the client uses it: its extended attributes, from any place that sees the path.

It keeps no state and opens nothing, so that it may be used before a fork, in a worker,
and in a container that sees nothing but the mount.

    user.volfs.status    how the volume is doing
    user.volfs.path      the local path of a file's complete, verified cache file, for some minutes
    user.volfs.release   ends that before its time
    user.volfs.prefetch  set on a directory: what will be opened below it, in this order
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Iterable
from typing import Any, Final

__all__ = ["is_volfs", "local_path", "prefetch", "release", "status"]

AnyPath = str | bytes | os.PathLike[str] | os.PathLike[bytes]

_STATUS: Final = "user.volfs.status"
_PATH: Final = "user.volfs.path"
_RELEASE: Final = "user.volfs.release"
_PREFETCH: Final = "user.volfs.prefetch"

#: How a file system says that it has no such attribute, or no attributes of users at all.
_ABSENT: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP})

#: In these cases the mount has no local file to hand out, or not to us; reading through it is right.
_NOT_HANDED_OUT: Final = _ABSENT | {errno.EACCES, errno.EPERM, errno.ENOSPC}

#: The kernel's limit for the value of an attribute.
_VALUE_BYTES: Final = 60_000


def is_volfs(path: AnyPath) -> bool:
    """Whether the path lies on a live volfs mount.

    Raises OSError if the path cannot be reached: FileNotFoundError if it does not
    exist, ENOTCONN if the mount's daemon has died.
    """
    try:
        os.getxattr(path, _STATUS)
    except OSError as error:
        if error.errno in _ABSENT:
            return False
        raise
    return True


def status(path: AnyPath) -> dict[str, Any]:
    """The status document of the volume that the path lies on, as `volfs status --json` prints it.

    Raises ValueError if the path is not on a volfs mount, OSError if it cannot be reached.
    """
    try:
        raw = os.getxattr(path, _STATUS)
    except OSError as error:
        if error.errno in _ABSENT:
            raise ValueError(f"{os.fsdecode(path)!r} is not on a volfs mount") from error
        raise
    document = json.loads(raw)
    if not isinstance(document, dict):
        raise ValueError(f"{os.fsdecode(path)!r} answered something that is not a status document")
    return document


def local_path(path: AnyPath, *, timeout_s: float = 600.0) -> str | None:
    """The path of a local file with exactly the bytes that the file has now; None where there is none.

    The file stays for some minutes, and for as long as it is held open. None: the path is not on a
    volfs mount, or the mount does not hand the file out; read it through the mount then. OSError if
    the file itself cannot be read; ETIMEDOUT after `timeout_s`, while it is still being fetched.
    """
    end_s = time.monotonic() + timeout_s
    while True:
        try:
            return os.fsdecode(os.getxattr(path, _PATH))
        except OSError as error:
            if error.errno in _NOT_HANDED_OUT:
                return None
            if error.errno not in (errno.EAGAIN, errno.ESTALE):
                raise
            if time.monotonic() >= end_s:
                raise TimeoutError(
                    errno.ETIMEDOUT, "the file is still being fetched", os.fsdecode(path)
                ) from error


def release(path: AnyPath) -> None:
    """The local file that was handed out for the path is not needed any more. Never fails."""
    try:
        os.getxattr(path, _RELEASE)
    except OSError:
        return  # it ends by itself


def prefetch(directory: AnyPath, paths: Iterable[str]) -> bool:
    """Tell the mount what the calling thread will open below the directory, and in which order.

    `paths` are relative to the directory. A hint costs nothing when it is wrong. False: the directory
    is not on a volfs mount, or the mount has no room for so long a list; say the rest later.
    """
    # Elsewhere it would become an attribute of the user's directory.
    if not is_volfs(directory):
        return False
    part: list[bytes] = []
    size = 0
    for path in paths:
        name = os.fsencode(path)
        if size + len(name) + 1 > _VALUE_BYTES:
            if not _say(directory, part):
                return False
            part, size = [], 0
        part.append(name)
        size += len(name) + 1
    return _say(directory, part) if part else True


def _say(directory: AnyPath, names: list[bytes]) -> bool:
    try:
        os.setxattr(directory, _PREFETCH, b"\0".join(names))
    except OSError:
        return False
    return True
