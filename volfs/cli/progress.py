"""How far work on many files is: a bar on a terminal, a line now and then elsewhere. All on stderr.

*Concurrency:* no thread draws; `show` does, when it is called often enough.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final

import click

from volfs.cli.status import size

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

__all__ = ["Progress", "line"]

#: Seconds between two lines where there is no terminal: few enough for a log, often enough to see it live.
_LINE_S: Final = 5.0


class Progress:
    """Use as a context; `show` what is done."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = self._shown = time.monotonic()
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        if sys.stderr.isatty():
            self._bar = _bar()
            self._task = self._bar.add_task(what, total=None, files="looking for files", rate="")

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    def show(self, files: int, of_files: int, count: int, of_bytes: int) -> None:
        """`files` and `count` bytes of so many are done."""
        if self._bar is not None and self._task is not None:
            self._bar.update(
                self._task,
                total=of_bytes,
                completed=count,
                files=f"{files:,} of {of_files:,} files",
                rate=f"{size(int(self._bar.tasks[0].speed or 0))}/s",
            )
            if time.monotonic() - self._shown > 0.1:
                self._shown = time.monotonic()
                self._bar.refresh()
        elif time.monotonic() - self._shown > _LINE_S:
            self._shown = time.monotonic()
            click.echo(f"{self._what}: {line(files, of_files, count, of_bytes, self.elapsed_s)}", err=True)


def line(files: int, of_files: int, count: int, of_bytes: int, elapsed_s: float) -> str:
    """Files, bytes, rate and time left, for people."""
    rate = count / elapsed_s if elapsed_s > 0 else 0.0
    left = f", {(of_bytes - count) / rate:.0f} s left" if rate else ""
    return f"{files} of {of_files} files, {size(count)} of {size(of_bytes)}, {size(int(rate))}/s{left}"


def _bar() -> Bar:
    # Imported where it is used: it costs more than the rest of the command.
    from rich import progress
    from rich.console import Console

    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.TextColumn("{task.fields[files]}"),
        progress.DownloadColumn(binary_units=True),
        progress.TextColumn("{task.fields[rate]}"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        auto_refresh=False,
    )
