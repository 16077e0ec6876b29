"""Versions: opaque tokens for one content of one file, and when one may still be racy.

A version token is compared for equality and used as a cache key; nothing but
the store that made it looks inside. This module is pure.
"""

from __future__ import annotations

from typing import NewType

__all__ = ["ABSENT", "Version", "is_racy"]

Version = NewType("Version", bytes)

#: The version of nothing, as a base: what is made from it may take a free name, and no other.
ABSENT = Version(b"")


def is_racy(changed_ns: int, now_ns: int, granularity_ns: int) -> bool:
    """Whether a file with this change time may still change without a new time.

    `changed_ns` is the later of mtime and ctime, `now_ns` the store's clock when
    the version was read, both in nanoseconds. A file that changed within one
    granule of the clock can change again and show the same times (git calls such
    an index entry racily clean: Documentation/technical/racy-git.txt).
    A time in the future is racy too: the clock may still reach it.
    """
    return changed_ns + granularity_ns >= now_ns
