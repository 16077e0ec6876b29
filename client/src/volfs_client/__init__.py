"""The light client of volfs: data sets, a loader and checkpoints on top of a mount, or of any directory.

It imports nothing from the daemon and needs nothing installed beside it: what needs
PyTorch, Spark or Delta is imported when it is first used. It speaks to the daemon
through extended attributes of the mount, which reach it also from a container that
sees nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from volfs_client.errors import (
    AlreadySharded,
    CheckpointDamaged,
    CheckpointError,
    CheckpointExists,
    CheckpointFailed,
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

if TYPE_CHECKING:
    from volfs_client.checkpoint.keeping import CheckpointManager
    from volfs_client.checkpoint.reader import VolumeReader
    from volfs_client.checkpoint.reader import VolumeReader as UCVolumeReader
    from volfs_client.checkpoint.writer import VolumeWriter
    from volfs_client.checkpoint.writer import VolumeWriter as UCVolumeWriter
    from volfs_client.copying import CopyCounts, copy_tree
    from volfs_client.dataset import UCVolumeDataset, VolumeDataset
    from volfs_client.loader import DataLoader
    from volfs_client.paths import LocalFile, LocalPath
    from volfs_client.stateful import Checkpointable
    from volfs_client.tables import ExportedTable, export_table, table_to_pandas
    from volfs_client.timing import BatchTiming, MlflowTimings

__all__ = [
    "AlreadySharded",
    "BatchTiming",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointExists",
    "CheckpointFailed",
    "CheckpointManager",
    "CheckpointMissing",
    "Checkpointable",
    "ClientError",
    "CopyCounts",
    "CopyFailed",
    "DataLoader",
    "ExportedTable",
    "FilesChanged",
    "LocalFile",
    "LocalPath",
    "MlflowTimings",
    "NoFiles",
    "RankUnknown",
    "StateMismatch",
    "TableError",
    "TooFewFiles",
    "UCVolumeDataset",
    "UCVolumeReader",
    "UCVolumeWriter",
    "VolumeDataset",
    "VolumeReader",
    "VolumeWriter",
    "__version__",
    "copy_tree",
    "export_table",
    "is_volfs",
    "local_path",
    "prefetch",
    "release",
    "status",
    "table_to_pandas",
]

__version__ = "0.1.0"

#: Where names live that are imported when they are first used.
_LATER: Final[dict[str, str]] = {
    "BatchTiming": "volfs_client.timing",
    "CheckpointManager": "volfs_client.checkpoint.keeping",
    "Checkpointable": "volfs_client.stateful",
    "CopyCounts": "volfs_client.copying",
    "DataLoader": "volfs_client.loader",
    "ExportedTable": "volfs_client.tables",
    "LocalFile": "volfs_client.paths",
    "LocalPath": "volfs_client.paths",
    "MlflowTimings": "volfs_client.timing",
    "UCVolumeDataset": "volfs_client.dataset",
    "VolumeDataset": "volfs_client.dataset",
    "VolumeReader": "volfs_client.checkpoint.reader",
    "VolumeWriter": "volfs_client.checkpoint.writer",
    "copy_tree": "volfs_client.copying",
    "export_table": "volfs_client.tables",
    "table_to_pandas": "volfs_client.tables",
}

#: Names that scripts for another product use, so that only their import line has to change.
_ALIASES: Final[dict[str, str]] = {"UCVolumeReader": "VolumeReader", "UCVolumeWriter": "VolumeWriter"}


def __getattr__(name: str) -> object:
    real = _ALIASES.get(name, name)
    module = _LATER.get(real)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(module), real)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
