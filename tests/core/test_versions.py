"""Racily clean versions."""

from __future__ import annotations

import pytest

from volfs.core.versions import is_racy


@pytest.mark.parametrize(
    ("changed", "now", "racy"),
    [(0, 11, False), (0, 10, True), (5, 5, True), (20, 10, True), (89, 100, False)],
)
def test_is_racy(changed: int, now: int, racy: bool) -> None:
    """Within one granule of the clock, or in the future, a file may change and show the same times."""
    assert is_racy(changed, now, 10) is racy
