"""Checkpoints for torch.distributed.checkpoint: whole or not there, checked before they are read.

Importing it imports torch; `import volfs_client` does not.
"""

from __future__ import annotations

from volfs_client.checkpoint.keeping import CheckpointManager, Saved
from volfs_client.checkpoint.reader import ReadTimings, VolumeReader
from volfs_client.checkpoint.saving import async_save, load, save
from volfs_client.checkpoint.writer import VolumeWriter, WriteTimings

__all__ = [
    "CheckpointManager",
    "ReadTimings",
    "Saved",
    "VolumeReader",
    "VolumeWriter",
    "WriteTimings",
    "async_save",
    "load",
    "save",
]
