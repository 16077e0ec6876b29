"""When a staged file is committed while it stays open, and when a failed commit is tried again. Pure.

All times are seconds of one monotonic clock, all sizes bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Activity", "backoff_s", "commit_at_flush", "due_while_open", "retry_s"]

#: A file that grows faster than this is being written at speed (a checkpoint): it is not shown half done.
_SLOW_BYTES_PER_S = 1 << 20

#: A log that never falls quiet is committed this long after its first uncommitted write.
_LONGEST_WAIT_S = 30.0

#: Below this a copy of the file costs less than a millisecond, so each close may commit.
_SMALL_BYTES = 1 << 20

#: The first retry is soon enough that a blip goes unnoticed, the last seldom enough to spare a sick store.
_BACKOFF_FIRST_S = 0.5
_BACKOFF_MOST_S = 30.0

#: Someone waits: 0.1 and 0.4 s at most are a hiccup, not a hang.
_RETRY_FIRST_S = 0.1


@dataclass(slots=True)
class Activity:
    """What was written since the last commit: when first, when last, how many bytes."""

    first_s: float
    last_s: float
    written: int

    def wrote(self, now_s: float, count: int) -> None:
        """So many more bytes, now."""
        self.last_s = now_s
        self.written += count


def due_while_open(now_s: float, activity: Activity, interval_s: float) -> bool:
    """Whether a file that stays open is committed now (promise W3)."""
    if now_s - activity.last_s >= interval_s:
        return True
    age = now_s - activity.first_s
    return age >= _LONGEST_WAIT_S and activity.written < _SLOW_BYTES_PER_S * age


def commit_at_flush(
    now_s: float, *, shared: bool, size: int, committed_s: float | None, interval_s: float
) -> bool:
    """Whether a flush of the last writing handle commits.

    A handle is known to be `shared` (its descriptor was duplicated) once it wrote
    after a flush. Each echo of a shell script that keeps its log open is such a
    flush: committing a large file each time would copy it each time, so those
    wait for the interval, the release or an fsync.
    """
    if not shared or size <= _SMALL_BYTES or committed_s is None:
        return True
    return now_s - committed_s >= interval_s


def retry_s(failures: int, jitter: float) -> float:
    """Seconds until one store call is tried again while somebody waits for it; `jitter` is in [0, 1)."""
    wait = _RETRY_FIRST_S * 4.0 ** (failures - 1)
    return wait * (0.5 + jitter / 2)


def backoff_s(failures: int, jitter: float) -> float:
    """Seconds until the next try after `failures` >= 1 in a row; `jitter` is in [0, 1)."""
    wait = min(_BACKOFF_MOST_S, _BACKOFF_FIRST_S * 2.0 ** (min(failures, 32) - 1))
    return wait * (0.5 + jitter / 2)
