"""Named points at which a test ends the process, as `kill -9` would.

A point stands between two steps whose order matters after a crash. The suite
finds the names in the sources, kills a daemon at each once, and looks at what
the next one makes of it. Nothing here runs unless VOLFS_CRASH_AT is set.
"""

from __future__ import annotations

import os
import signal
from typing import Final

__all__ = ["point"]

#: `NAME` or `NAME:N`: die at the first, or the Nth, passage of the point.
_name, _, _count = os.environ.get("VOLFS_CRASH_AT", "").partition(":")
_WANTED: Final = _name
_left = int(_count or 1)


def point(name: str) -> None:
    """Die here if a test asked for it."""
    if not _WANTED or name != _WANTED:
        return
    global _left
    _left -= 1
    if not _left:
        os.kill(os.getpid(), signal.SIGKILL)
