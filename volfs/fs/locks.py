"""A lock that many may share or one may hold alone; trio has none.

Who waits in vain for longer than the patience gets StoreTimeout: holders wait for
nothing but the store.

Fair: who asks to hold it alone is not overtaken by later sharers, so a rename
of a directory waits for the commits under way and for no others.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from volfs.errors import StoreTimeout

__all__ = ["SharedLock"]


class SharedLock:
    """See the module. Patience in seconds."""

    def __init__(self, patience_s: float = math.inf) -> None:
        self._patience_s = patience_s
        self._changed = trio.Condition()
        self._sharers = 0
        self._alone = False
        self._asking = 0

    def _barred(self) -> bool:
        return self._alone or self._asking > 0

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Hold it with others. Does not await when nobody asks to hold it alone, which is nearly always."""
        if self._barred():
            async with self._changed:
                await self._until(lambda: not self._barred())
                self._sharers += 1
        else:
            self._sharers += 1
        try:
            yield
        finally:
            self._sharers -= 1
            if self._asking and not self._sharers:
                await self._notify()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Hold it while nobody else does."""
        self._asking += 1
        try:
            async with self._changed:
                await self._until(lambda: not (self._alone or self._sharers))
                self._alone = True
        finally:
            self._asking -= 1
            if not self._alone:
                await self._notify()  # cancelled: those who stood behind us may go on
        try:
            yield
        finally:
            self._alone = False
            await self._notify()

    async def _until(self, free: Callable[[], bool]) -> None:
        try:
            with trio.fail_after(self._patience_s):
                while not free():
                    await self._changed.wait()
        except trio.TooSlowError as error:
            raise StoreTimeout(f"what came before has not ended for {self._patience_s:g} s") from error

    async def _notify(self) -> None:
        with trio.CancelScope(shield=True):
            async with self._changed:
                self._changed.notify_all()
