"""An end for what may hang in a mount: after so many seconds, what would free it is called.

*Concurrency:* a timer thread calls; who hangs comes back with an error, which becomes `DidNotEnd`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

__all__ = ["Deadline", "DidNotEnd"]


class DidNotEnd(Exception):
    """The deadline passed."""


class Deadline:
    """A context: `ends` are called in order if the block takes longer, and the block raises DidNotEnd."""

    def __init__(self, seconds: float, *ends: Callable[[], object]) -> None:
        self._seconds = seconds
        self._ends = ends
        self._expired = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def _end(self) -> None:
        self._expired = True
        for end in self._ends:
            end()

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._expired and (kind is None or issubclass(kind, Exception)):
            raise DidNotEnd(f"no end within {self._seconds:g} s") from error
