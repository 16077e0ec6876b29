"""Racily clean versions."""

from __future__ import annotations

import pytest

from volfs.core.versions import is_racy, is_settled


@pytest.mark.parametrize(
    ("changed", "now", "racy"),
    [(0, 11, False), (0, 10, True), (5, 5, True), (20, 10, True), (89, 100, False)],
)
def test_is_racy(changed: int, now: int, racy: bool) -> None:
    """Within one granule of the clock, or in the future, a file may change and show the same times."""
    assert is_racy(changed, now, 10) is racy


@pytest.mark.parametrize(
    ("mtime", "ctime", "settled"),
    [
        (1_000_000_000, 1_010_000_001, True),
        (1_000_000_001, 1_010_000_001, False),
        (1_010_000_001, 1_000_000_001, False),
        (1_000_000_000, 3_000_000_000, False),
        (999_999_999, 3_000_000_000, True),
    ],
)
def test_is_settled(mtime: int, ctime: int, settled: bool) -> None:
    """The content is older than the name by more than a tick; by two seconds where times have no fraction."""
    assert is_settled(mtime, ctime) is settled
