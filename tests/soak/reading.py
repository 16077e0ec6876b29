"""A directory as it is: names and bytes, with the names of one file known as such."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from tests.soak.ledger import DIRECTORY, Inode, Ledger

__all__ = ["ledger_of"]


def ledger_of(directory: Path) -> Ledger:
    """All that is below the directory, by scandir, stat, open and read."""
    ledger = Ledger()
    inodes: dict[int, Inode] = {}
    _walk(directory, "", ledger, inodes)
    return ledger


def _walk(directory: Path, prefix: str, ledger: Ledger, inodes: dict[int, Inode]) -> None:
    for name in sorted(os.listdir(directory)):
        path = directory / name
        found = path.lstat()
        if stat.S_ISDIR(found.st_mode):
            ledger.names[prefix + name] = DIRECTORY
            _walk(path, f"{prefix}{name}/", ledger, inodes)
        else:
            inode = inodes.get(found.st_ino)
            if inode is None:
                inode = inodes[found.st_ino] = Inode(path.read_bytes())
            ledger.names[prefix + name] = inode
