"""The light client of volfs: what a path is, and how its volume is doing.

It imports nothing from the daemon and needs nothing installed beside it. It
speaks to the daemon through extended attributes of the mount, which reach it
also from a container that sees nothing else.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Final

__all__ = ["__version__", "is_volfs", "status"]

__version__ = "0.1.0"

_STATUS: Final = "user.volfs.status"
#: How a file system says that it has no such attribute, or no attributes of users at all.
_ABSENT: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP})


def is_volfs(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> bool:
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


def status(path: str | bytes | os.PathLike[str] | os.PathLike[bytes]) -> dict[str, Any]:
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
