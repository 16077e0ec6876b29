"""The errno table: collected by the tests that fill it, shown at the end of the run.

It owns the layout, and nothing of what the entries mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

__all__ = ["ErrnoTable", "ErrnoTables"]


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

    def added(self) -> list[tuple[str, str, dict[str, str]]]:
        """What was added, for another process to add."""
        return [
            (name, mode, entries)
            for name, variants in self._rows.items()
            for modes, entries in variants
            for mode in modes
        ]


class ErrnoTables:
    """A pytest plugin: the table of a run, also of one whose tests run in several processes."""

    def __init__(self) -> None:
        self._table: ErrnoTable | None = None

    @property
    def table(self) -> ErrnoTable:
        """Made when it is first asked for: a run without these tests shows nothing."""
        self._table = self._table or ErrnoTable()
        return self._table

    @pytest.hookimpl
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """In a worker: hand the table to the process that prints."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None and self._table is not None:
            output["errno_table"] = [list(self._table.legend), self._table.added()]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker has ended: take over what it had."""
        handed = getattr(node, "workeroutput", {}).get("errno_table")
        if handed is not None:
            legend, added = handed
            self.table.legend = tuple(legend)
            for name, mode, entries in added:
                self.table.add(name, mode, dict(entries))

    @pytest.hookimpl
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the table, if a test filled one."""
        if self._table is None:
            return
        terminalreporter.section("what the application got, and the state afterwards")
        for line in (*self._table.legend, *self._table.lines()):
            terminalreporter.line(line)
