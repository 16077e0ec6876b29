"""When open files are committed, and when failed commits are tried again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volfs.core.schedule import Activity, backoff_s, commit_at_flush, due_while_open

MIB = 1 << 20


@pytest.mark.parametrize(
    ("now", "first", "last", "written", "due"),
    [
        (4.9, 0, 0, 10, False),  # quiet, not long enough
        (5.0, 0, 0, 10, True),  # quiet for the interval
        (29.0, 0, 28, 10, False),  # a log that never rests, not 30 s old
        (30.0, 0, 29, 10, True),  # a log after 30 s
        (30.0, 0, 29, 31 * MIB, False),  # a checkpoint at speed: not shown half done
        (300.0, 0, 299, 301 * MIB, False),
        (300.0, 0, 290, 301 * MIB, True),  # the checkpoint paused
    ],
)
def test_due_while_open(now: float, first: float, last: float, written: int, due: bool) -> None:
    """W3 as a table."""
    assert due_while_open(now, Activity(first, last, written), 5.0) is due


@pytest.mark.parametrize(
    ("shared", "size", "committed", "commits"),
    [
        (False, 10 * MIB, 99.0, True),  # an ordinary close always commits
        (True, 1000, 99.0, True),  # a small log of a shell script: at each echo
        (True, 10 * MIB, 99.0, False),  # a large one: not again after a second
        (True, 10 * MIB, 95.0, True),  # but after the interval
        (True, 10 * MIB, None, True),  # and the first time
    ],
)
def test_commit_at_flush(shared: bool, size: int, committed: float | None, commits: bool) -> None:
    """A duplicated descriptor does not copy a large file at each close."""
    assert commit_at_flush(100.0, shared=shared, size=size, committed_s=committed, interval_s=5.0) is commits


@given(st.integers(1, 1000), st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded_and_grows(failures: int, jitter: float) -> None:
    """Never above 30 s, never below a quarter of a second, and longer with each failure up to the bound."""
    wait = backoff_s(failures, jitter)
    assert 0.25 <= wait <= 30.0
    assert backoff_s(failures + 1, jitter) >= wait
