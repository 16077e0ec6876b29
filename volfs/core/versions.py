"""Versions: opaque tokens for one content of one file, and when one may still be racy.

A version token is compared for equality and used as a cache key; nothing but
the store that made it looks inside. This module is pure.
"""

from __future__ import annotations

from typing import Final, NewType

__all__ = ["ABSENT", "Version", "is_racy", "is_settled", "is_version"]

Version = NewType("Version", bytes)

#: The version of nothing, as a base: what is made from it may take a free name, and no other.
ABSENT = Version(b"")

#: Kernels stamp times once a tick, at most so long; file systems without fractions of a second, every two.
_TICK_NS: Final = 10_000_000
_COARSE_NS: Final = 2_000_000_000
_SECOND_NS: Final = 1_000_000_000


def is_version(base: Version | None) -> bool:
    """Whether it is one of something: neither nothing nor whatever there is."""
    return base is not None and base != ABSENT


def is_racy(changed_ns: int, now_ns: int, granularity_ns: int) -> bool:
    """Whether a file with this change time may still change without a new time.

    `changed_ns` is the later of mtime and ctime, `now_ns` the store's clock when
    the version was read, both in nanoseconds. A file that changed within one
    granule of the clock can change again and show the same times (git calls such
    an index entry racily clean: Documentation/technical/racy-git.txt).
    A time in the future is racy too: the clock may still reach it.
    """
    return changed_ns + granularity_ns >= now_ns


def is_settled(mtime_ns: int, ctime_ns: int) -> bool:
    """Whether whoever writes to a file that we gave its name (at `ctime_ns`) changes its mtime by that.

    A write sets an mtime of the same clock as ctime, not earlier than it. Where ours is
    older by more than a granule, no later write can have it, unless it is set back to the
    nanosecond. No clock but the store's matters, so this holds right after a commit.
    """
    return ctime_ns - mtime_ns > (_TICK_NS if ctime_ns % _SECOND_NS else _COARSE_NS)
