"""Waiting for a store that may not answer: as long as bytes move, and not much longer.

A request must end in bounded time (B3); what it began may have to go on, because
a rename that was sent cannot be called back. So callers wait with a patience,
and what they wait for holds its lock until it is really over.

*Invariants:* patience None waits for ever, for stores whose calls end by themselves.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType

import trio

from volfs.errors import StoreTimeout

__all__ = ["PatientLock", "Progress"]


class Progress:
    """Counts signs of life; `moved` may be called from any thread."""

    __slots__ = ("_count", "_patience_s")

    def __init__(self, patience_s: float | None) -> None:
        self._patience_s = patience_s
        self._count = 0

    def moved(self) -> None:
        self._count += 1

    async def wait(self, for_what: Callable[[], Awaitable[object]]) -> None:
        """Await it; StoreTimeout once nothing has moved for the patience."""
        if self._patience_s is None:
            await for_what()
            return
        while True:
            seen = self._count
            with trio.move_on_after(self._patience_s):
                await for_what()
                return
            if self._count == seen:
                raise StoreTimeout(f"the store has not answered for {self._patience_s:g} s")


class PatientLock:
    """A lock whose holder may be waiting for the store: StoreTimeout for who waits behind it in vain."""

    __slots__ = ("_lock", "_progress")

    def __init__(self, progress: Progress) -> None:
        self._lock = trio.Lock()
        self._progress = progress

    async def __aenter__(self) -> None:
        try:
            self._lock.acquire_nowait()
        except trio.WouldBlock:
            await self._progress.wait(self._lock.acquire)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
