"""A daemon as a busy cluster has it: the command line, and by its environment, what is different for it.

`VOLFS_SOAK_QUEUE=slow`: commits wait for their turn. On an idle machine a queued
commit runs a millisecond after close. Then almost nothing is acknowledged and not
committed when the daemon dies, and renames, removals and rewrites of such files,
which a busy store makes common, never happen.

`VOLFS_SOAK_STORE=remote`: the store is treated as one over a network is. Files are
fetched before they are opened, and copied while they are written, smaller ones
than usual, since the soak has no large ones.
"""

from __future__ import annotations

import functools
import os
import random
import sys
from typing import Final

import trio

from volfs import daemon
from volfs.cli import main
from volfs.core import ahead
from volfs.fs.files import Files
from volfs.store.directory import DirectoryStore

__all__: list[str] = []

_LONGEST_S: Final = 0.6

_PART_BYTES: Final = 32 << 10
_START_BYTES: Final = 64 << 10

_commit = Files.commit_number


async def _commit_later(self: Files, number: int) -> None:
    await trio.sleep(random.uniform(0, _LONGEST_S))
    await _commit(self, number)


if __name__ == "__main__":
    if os.environ.get("VOLFS_SOAK_QUEUE") == "slow":
        Files.commit_number = _commit_later  # type: ignore[method-assign]
    if os.environ.get("VOLFS_SOAK_STORE") == "remote":
        daemon.DirectoryStore = functools.partial(DirectoryStore, local=False)  # type: ignore[assignment, attr-defined]
        ahead.PART_BYTES, ahead.START_BYTES = _PART_BYTES, _START_BYTES  # type: ignore[misc]
    sys.exit(main())
