"""Files and directories of a checkpoint: made durable, published, and seen as they are now.

It knows nothing of what is in them. Each function is right on any local directory, and where it
says so asks more of a volfs mount.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO

from volfs_client.durable import sync_directory
from volfs_client.mount import is_volfs

__all__ = ["current_size", "make_directory", "publish_file", "remove_files"]


def make_directory(path: Path) -> None:
    """Make a directory and what is missing above it, durably. Several processes may do so at once."""
    missing = [path]
    while not missing[-1].parent.is_dir():
        missing.append(missing[-1].parent)
    for one in reversed(missing):
        try:
            one.mkdir()
        except FileExistsError:
            if not one.is_dir():
                raise
        else:
            sync_directory(one.parent)


def publish_file(path: Path, write: Callable[[IO[bytes]], object], token: str) -> None:
    """Put a file in its place at once and durably; whoever opens `path` finds the old file or the new one.

    `token` is part of the temporary name. If the last step fails, the name may stand for the new file
    already, whose durability is then unknown.
    """
    temporary = path.with_name(f"{path.name}.{token}.tmp")
    try:
        with temporary.open("wb") as stream:
            write(stream)
            stream.flush()  # before the sync: what is still in Python's buffer is synced by nobody
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        remove_files([temporary])
        raise
    sync_directory(path.parent)


def remove_files(paths: Iterable[Path]) -> None:
    """Remove files as far as that is possible; never fails."""
    for path in paths:
        try:
            path.unlink()
        except OSError:
            pass  # it is gone, or it stays: nothing refers to it


def current_size(path: Path, *, on_volfs: bool | None = None) -> int:
    """The size of a file as the store has it now, in bytes.

    On a volfs mount a plain open may believe what the mount knew a second ago; one with O_DIRECT
    makes it ask the store, and the opens that follow see what it found.
    """
    if is_volfs(path.parent) if on_volfs is None else on_volfs:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        try:
            return os.fstat(fd).st_size
        finally:
            os.close(fd)
    return path.stat().st_size
