"""Both SEMANTICS.md name tests for each promise, and they name it; no promise of the design is left out."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROWS = {
    match[1]: match[2]
    for page in ("volfs", "client")
    for match in re.finditer(
        r"^\| ([A-Z]\d+[a-z]?) \|(.*)\|$", (TESTS.parent / page / "SEMANTICS.md").read_text(), re.MULTILINE
    )
}
_ID = re.compile(r"\b[WRBDC]\d+[a-z]?\b")
PROMISES = [f"W{n}" for n in range(1, 12)] + [f"R{n}" for n in range(1, 6)] + [f"B{n}" for n in range(1, 6)]


def _docstrings() -> dict[str, str]:
    """What each test says of itself; tests of one name together."""
    found: dict[str, str] = defaultdict(str)
    for file in TESTS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found[node.name] += ast.get_docstring(node) or ""
    return found


DOCSTRINGS = _docstrings()


@pytest.mark.parametrize("row", sorted(ROWS))
def test_each_row_names_tests_that_exist(row: str) -> None:
    """A promise without a test is a wish."""
    named = re.findall(r"`(test_\w+)`", ROWS[row])

    assert named
    assert set(named) - set(DOCSTRINGS) == set()


@pytest.mark.parametrize("row", sorted(ROWS))
def test_each_row_is_named_by_one_of_its_tests(row: str) -> None:
    """The other way: who reads the test finds the promise."""
    named = re.findall(r"`(test_\w+)`", ROWS[row])

    assert [test for test in named if row in _ID.findall(DOCSTRINGS[test])] != []


def test_tests_name_rows_that_exist() -> None:
    """A test that names a promise names one that is made."""
    assert {
        test: id_ for test, text in DOCSTRINGS.items() for id_ in _ID.findall(text) if id_ not in ROWS
    } == {}


def test_each_promise_has_a_row() -> None:
    """Nothing that the design promises is left out."""
    assert [promise for promise in PROMISES if promise not in ROWS] == []
