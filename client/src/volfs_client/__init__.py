"""The light client of volfs: data sets, a loader and checkpoints on top of a mount, or of any directory.

It imports nothing from the daemon and needs nothing installed beside it: what needs
PyTorch, Spark or Delta is imported when it is first used. It speaks to the daemon
through extended attributes of the mount, which reach it also from a container that
sees nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Final

from volfs_client.errors import (
    AlreadySharded,
    CheckpointDamaged,
    CheckpointError,
    CheckpointExists,
    CheckpointMissing,
    ClientError,
    CopyFailed,
    FilesChanged,
    NoFiles,
    RankUnknown,
    StateMismatch,
    TableError,
    TooFewFiles,
)
from volfs_client.mount import is_volfs, local_path, prefetch, release, status

__all__ = [
    "AlreadySharded",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointExists",
    "CheckpointMissing",
    "ClientError",
    "CopyFailed",
    "FilesChanged",
    "NoFiles",
    "RankUnknown",
    "StateMismatch",
    "TableError",
    "TooFewFiles",
    "__version__",
    "is_volfs",
    "local_path",
    "prefetch",
    "release",
    "status",
]

__version__ = "0.1.0"

#: Where names live that are imported when they are first used.
_LATER: Final[dict[str, str]] = {}


def __getattr__(name: str) -> object:
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
