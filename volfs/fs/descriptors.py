"""The daemon's descriptors: as many as it may have, and opens leave some for what everybody needs.

A file that is open here takes up to three (of the store's file, the staged one and the
cache file). Metadata calls, commits and the journal need some for a moment. Were there
none left, every request of everybody would fail until somebody closed a file, and
nothing could be committed; so opens are refused before.

*Concurrency:* none; a few system calls.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from volfs.errors import StoreError

__all__ = ["raise_limit", "refuse_if_scarce"]

log = structlog.get_logger(__name__)

_SAY_AGAIN_S: Final = 60.0

#: When it was said last, by time.monotonic().
_said_s = -math.inf

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
        message = f"too many files are open on this mount; raise the daemon's limit of {limit} (ulimit -n)"
        _say(message)
        raise StoreError(message, errno=errno.ENFILE)


def _say(message: str) -> None:
    """Into the log, not for each of the opens that are refused one after the other."""
    global _said_s
    now = time.monotonic()
    if now - _said_s >= _SAY_AGAIN_S:
        _said_s = now
        log.error(message)
