"""The errno table: collected by the tests that fill it, shown at the end of the run.

It owns the layout, and nothing of what the entries mean.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

__all__ = ["ErrnoTable"]

_tables = pytest.StashKey["ErrnoTable"]()


class ErrnoTable:
    """Rows by name, each with one entry a column. What several modes agree on is one row."""

    def __init__(self) -> None:
        self.legend: tuple[str, ...] = ()
        self._columns: dict[str, None] = {}
        self._rows: dict[str, list[tuple[list[str], dict[str, str]]]] = {}  # name -> modes and their entries

    def add(self, name: str, mode: str, entries: dict[str, str]) -> None:
        """One row of one mode. A column that it leaves out agrees with whatever another has there."""
        self._columns.update(dict.fromkeys(entries))
        for modes, known in self._rows.setdefault(name, []):
            if all(known.get(column, entry) == entry for column, entry in entries.items()):
                modes.append(mode)
                known.update(entries)
                return
        self._rows[name].append(([mode], dict(entries)))

    def lines(self) -> Iterator[str]:
        """The table as text."""
        rows = [("act: store call", "mode", *self._columns)]
        for name, variants in self._rows.items():
            for modes, entries in variants:
                rows.append((name, " ".join(modes), *(entries.get(each, "") for each in self._columns)))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()


@pytest.fixture(scope="session")
def errno_table(request: pytest.FixtureRequest) -> ErrnoTable:
    """The table of this session."""
    return request.config.stash.setdefault(_tables, ErrnoTable())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Show the table, if a test filled one."""
    table = config.stash.get(_tables, None)
    if table is None:
        return
    terminalreporter.section("what the application got, and the state afterwards")
    for line in (*table.legend, *table.lines()):
        terminalreporter.line(line)
