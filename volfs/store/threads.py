"""Blocking calls in threads that can be left behind.

A call to a store that hangs cannot be cancelled, only left: its thread goes on
alone until the kernel lets it. What it brings back then is thrown away in the
trio thread, and what it used is let go only then.

The threads are those of trio's cache. What they bring back is handed over in
batches: while one is on its way to the trio thread, further results join it.
With 64 calls at once that halves what a call costs (`trio.to_thread` wakes the
loop for each, and enters a limiter and a context besides).

*Concurrency:* `run` is called from the trio thread, and only there is decided
what becomes of a call. A thread makes the call, puts it into `_returned`, and
then reads `_coming`; `_hand_over` clears `_coming` and then empties `_returned`.
So no result is overlooked.

*Invariants:* at most AT_ONCE calls that somebody waits for, and at most
MOST_LEFT that nobody does: further ones fail at once, so that a dead store takes
neither memory nor threads without end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

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

    __slots__ = ("args", "drop", "ended", "function", "left", "outcome", "results", "task")

    def __init__(
        self,
        function: Callable[..., T],
        args: tuple[object, ...],
        drop: Callable[[T], None],
        ended: Callable[[], None],
    ) -> None:
        self.function = function
        self.args = args
        self.drop = drop
        self.ended = ended
        self.task = trio.lowlevel.current_task()
        self.left = False
        self.results: list[T] = []
        self.outcome: Any = None

    def work(self) -> T:
        result = self.function(*self.args)
        self.results.append(result)
        return result


class StoreThreads:
    """See the module. `left`: calls that were left and have not returned."""

    def __init__(self) -> None:
        self.left = 0
        self._free = _AT_ONCE
        self._waiting = trio.lowlevel.ParkingLot()  # for a place; who is woken has it
        self._returned: deque[_Call[Any]] = deque()
        self._coming = False  # a `_hand_over` is on its way

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
        call = _Call(function, args, drop, ended)
        try:
            await self._place()
        except BaseException:
            ended()
            raise
        try:
            return await self._work(call)
        finally:
            self._leave_place()
            if not call.left:
                ended()

    async def _place(self) -> None:
        if self.left >= _MOST_LEFT:
            raise StoreTimeout(f"{self.left} calls to the store have not returned")
        if self._free:
            self._free -= 1
        else:
            await self._waiting.park()
        try:
            # From here to the start of the thread there is no checkpoint at which we could be cancelled.
            await trio.lowlevel.checkpoint_if_cancelled()
        except BaseException:
            self._leave_place()
            raise

    def _leave_place(self) -> None:
        if not self._waiting.unpark():
            self._free += 1

    async def _work(self, call: _Call[T]) -> T:
        token = trio.lowlevel.current_trio_token()

        def deliver(outcome: Any) -> None:
            call.outcome = outcome
            self._returned.append(call)
            if not self._coming:
                self._coming = True
                with suppress(trio.RunFinishedError):
                    token.run_sync_soon(self._hand_over)

        def leave(raise_cancel: object) -> trio.lowlevel.Abort:
            call.left = True
            self.left += 1
            return trio.lowlevel.Abort.SUCCEEDED

        trio.lowlevel.start_thread_soon(call.work, deliver)
        return cast(T, await trio.lowlevel.wait_task_rescheduled(leave))

    def _hand_over(self) -> None:
        """In the trio thread: give the results that are here to who waits for them."""
        self._coming = False
        while self._returned:
            call = self._returned.popleft()
            if not call.left:
                trio.lowlevel.reschedule(call.task, call.outcome)
                continue
            self.left -= 1
            for result in call.results:
                call.drop(result)
            call.ended()
