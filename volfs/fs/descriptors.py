"""The daemon's descriptors: as many as it may have, and opens leave some for what everybody needs.

A file that is open here takes up to three (of the store's file, the staged one and the
cache file). Metadata calls, commits and the journal need some for a moment. Were there
none left, every request of everybody would fail until somebody closed a file, and
nothing could be committed; so opens are refused before.

*Concurrency:* none; a few system calls.
"""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

from volfs.errors import StoreError

__all__ = ["raise_limit", "refuse_if_scarce"]

#: For all calls to the store and the cache that may be under way at once, each with a few.
_RESERVED: Final = 1024


def raise_limit() -> None:
    """Let this process have as many as the kernel gives: beyond the hard limit, if it is root."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = hard
    with suppress(OSError, ValueError):
        most = max(hard, int(Path("/proc/sys/fs/nr_open").read_text()))
    for limit in (most, hard):
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            return


def refuse_if_scarce() -> None:
    """StoreError (ENFILE) if what is left is for others than opens."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest = os.open("/", os.O_PATH | os.O_CLOEXEC)  # the kernel gives the lowest that is free
        os.close(lowest)
    except OSError:
        lowest = limit
    if lowest >= limit - min(_RESERVED, limit // 4):
        raise StoreError(
            f"too many files are open on this mount; raise the daemon's limit of {limit} (ulimit -n)",
            errno=errno.ENFILE,
        )
