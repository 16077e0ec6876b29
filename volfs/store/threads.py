"""Blocking calls in threads that can be left behind.

A call to a store that hangs cannot be cancelled, only left: its thread goes on
alone until the kernel lets it. What it brings back then is thrown away in the
trio thread, and what it used is let go only then.

*Concurrency:* `run` is called from the trio thread. The mutex of a call decides
between the thread that returns and the task that leaves; it is held for a few
instructions.

*Invariants:* at most AT_ONCE calls that somebody waits for, and at most
MOST_LEFT that nobody does: further ones fail at once, so that a dead store takes
neither memory nor threads without end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import trio

from volfs.errors import StoreTimeout

__all__ = ["StoreThreads"]

T = TypeVar("T")

#: Calls at once against a remote directory: 64 at 10 ms each are 6,400 a second. More threads would only
#: take turns at the interpreter.
_AT_ONCE = 64

#: A stack and a kernel task each, some 50 KiB: as many as one may ask of a machine whose store is away.
_MOST_LEFT = 256


def _nothing(result: object) -> None:
    pass


class _Call(Generic[T]):
    """One call. `drop` takes its result if nobody else does, `ended` hears that the thread is done."""

    __slots__ = ("_function", "_left_behind", "drop", "ended", "left", "mutex", "result", "returned")

    def __init__(
        self,
        function: Callable[[], T],
        drop: Callable[[T], None],
        ended: Callable[[], None],
        left_behind: Callable[[_Call[T]], None],
    ) -> None:
        self._function = function
        self._left_behind = left_behind
        self.drop = drop
        self.ended = ended
        self.mutex = threading.Lock()
        self.left = False
        self.returned = False
        self.result: list[T] = []

    def work(self) -> T:
        try:
            self.result.append(self._function())
            return self.result[0]
        finally:
            with self.mutex:
                self.returned = True
                left = self.left
            if left:
                self._left_behind(self)

    def finish(self) -> None:
        """In the trio thread: nobody wants the result."""
        for result in self.result:
            self.drop(result)
        self.ended()


class StoreThreads:
    """See the module. `left`: calls that were left and have not returned."""

    def __init__(self) -> None:
        self._places = trio.CapacityLimiter(_AT_ONCE)
        self._threads = trio.CapacityLimiter(_AT_ONCE + _MOST_LEFT)  # never waited for
        self.left = 0

    async def run(
        self,
        function: Callable[..., T],
        *args: object,
        drop: Callable[[T], None] = _nothing,
        ended: Callable[[], None] = lambda: None,
    ) -> T:
        """Call in a thread. Cancelled, it leaves the call alone, which may still do what it was to do.

        `drop` is given a result that nobody takes; `ended` is called once the thread
        has returned, whatever came of it.
        """
        token = trio.lowlevel.current_trio_token()

        def left_behind(call: _Call[T]) -> None:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(self._returned, call)

        call = _Call(lambda: function(*args), drop, ended, left_behind)
        try:
            await self._place(call)
        except BaseException:
            ended()
            raise
        try:
            return await self._work(call)
        finally:
            self._places.release_on_behalf_of(call)

    async def _place(self, call: _Call[T]) -> None:
        if self.left >= _MOST_LEFT:
            raise StoreTimeout(f"{self.left} calls to the store have not returned")
        await self._places.acquire_on_behalf_of(call)
        try:
            # From here to the start of the thread there is no checkpoint at which we could be cancelled.
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self._places.release_on_behalf_of(call)
            raise

    async def _work(self, call: _Call[T]) -> T:
        try:
            result = await trio.to_thread.run_sync(call.work, abandon_on_cancel=True, limiter=self._threads)
        except trio.Cancelled:
            with call.mutex:
                call.left = True
                returned = call.returned
            if returned:
                call.finish()
            else:
                self.left += 1
            raise
        except BaseException:
            call.ended()
            raise
        call.ended()
        return result

    def _returned(self, call: _Call[Any]) -> None:
        self.left -= 1
        call.finish()
