"""The daemon's last word: how it ended, left in the cache directory for whoever unmounted it.

Only a parent gets an exit code, and the daemon has none: it was started detached.

*Invariants:* a record is of the process that it names; it is there before that
process is gone, unless it was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Final

__all__ = ["clear", "read", "write"]

_NAME: Final = "last-exit.json"


def clear(cache_dir: Path) -> None:
    """Forget how an earlier daemon ended; process ids come round again."""
    with contextlib.suppress(OSError):
        (cache_dir / _NAME).unlink()


def write(cache_dir: Path, code: int) -> None:
    """Say that this process is about to end with `code`. A full disk must not change how it ends."""
    with contextlib.suppress(OSError):
        beside = cache_dir / f".{_NAME}-{os.getpid()}"
        beside.write_text(json.dumps({"pid": os.getpid(), "code": code}))
        beside.rename(cache_dir / _NAME)


def read(cache_dir: Path, pid: int) -> int | None:
    """The code that the daemon `pid` ended with; None if it left no record."""
    try:
        record = json.loads((cache_dir / _NAME).read_text())
        return int(record["code"]) if record["pid"] == pid else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
