"""volfs/SEMANTICS.md names tests for each promise, and they exist; every promise of the design has a row."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = {
    match[1]: match[2]
    for match in re.finditer(
        r"^\| ([A-Z]\d+[a-z]?) \|(.*)\|$", (TESTS.parent / "volfs/SEMANTICS.md").read_text(), re.MULTILINE
    )
}
DEFINED = {
    name
    for file in TESTS.rglob("*.py")
    for name in re.findall(r"^\s*(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
}
#: B3 (a store that fails) is a later work: it has no row yet.
PROMISES = [f"W{n}" for n in range(1, 12)] + [f"R{n}" for n in range(1, 6)] + ["B1", "B2", "B4", "B5"]


@pytest.mark.parametrize("row", sorted(ROWS))
def test_each_row_names_tests_that_exist(row: str) -> None:
    """A promise without a test is a wish."""
    named = re.findall(r"`(test_\w+)`", ROWS[row])

    assert named
    assert set(named) - DEFINED == set()


def test_each_promise_has_a_row() -> None:
    """Nothing that the design promises is left out."""
    assert [promise for promise in PROMISES if promise not in ROWS] == []
