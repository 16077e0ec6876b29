"""Blocking calls in threads that can be left behind.

A call to a store that hangs cannot be cancelled, only left: its thread goes on
alone until the kernel lets it. What it brings back then is thrown away in the
trio thread, and what it used is let go only then.

A thread (one of trio's cache) makes call after call for as long as there are any
that wait, and results are handed to the trio thread in batches: while one is on
its way, further ones join it. With many calls at once that is a third of what
`trio.to_thread` costs, which wakes a thread and the loop for each.

*Concurrency:* `run` is called from the trio thread, and only there is decided
what becomes of a call. `_mutex` protects `_jobs`, `_active` and `_Call.state`,
for a few instructions. A thread puts a result into `_returned` and then reads
`_coming`; `_hand_over` clears `_coming` and then empties `_returned`. So no
result is overlooked.

*Invariants:* `_active` threads serve `_jobs`, at most AT_ONCE, and none ends
while there is a job. At most MOST_LEFT calls are made that nobody waits for:
further ones fail at once, so that a dead store takes neither memory nor threads
without end. A call that is left before a thread took it is never made.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast

import outcome
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


class _State(enum.Enum):
    WAITING = enum.auto()
    MADE = enum.auto()
    RETURNED = enum.auto()
    LEFT = enum.auto()


class _Call(Generic[T]):
    """One call. `drop` takes its result if nobody else does, `ended` hears that the thread is done."""

    __slots__ = ("args", "drop", "ended", "function", "outcome", "results", "state", "task", "token")

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
        self.token = trio.lowlevel.current_trio_token()
        self.state = _State.WAITING
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
        self._mutex = threading.Lock()
        self._jobs: deque[_Call[Any]] = deque()
        self._active = 0
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
            if self.left >= _MOST_LEFT:
                raise StoreTimeout(f"{self.left} calls to the store have not returned")
            await trio.lowlevel.checkpoint_if_cancelled()
            return await self._work(call)
        finally:
            if call.state is not _State.LEFT:
                ended()

    async def _work(self, call: _Call[T]) -> T:
        with self._mutex:
            self._jobs.append(call)
            self._serve()
        return cast(T, await trio.lowlevel.wait_task_rescheduled(lambda _: self._leave(call)))

    def _serve(self) -> None:
        """Under the mutex: another thread for the jobs, if there may be one."""
        if self._jobs and self._active < _AT_ONCE:
            self._active += 1
            trio.lowlevel.start_thread_soon(self._make_calls, _nothing)

    def _make_calls(self) -> None:
        """In a thread."""
        while True:
            with self._mutex:
                if not self._jobs:
                    self._active -= 1
                    return
                call = self._jobs.popleft()
                call.state = _State.MADE
            call.outcome = outcome.capture(call.work)
            with self._mutex:
                alone = call.state is _State.LEFT  # then somebody else has this thread's place
                if not alone:
                    call.state = _State.RETURNED
            self._returned.append(call)
            if not self._coming:
                self._coming = True
                with suppress(trio.RunFinishedError):
                    call.token.run_sync_soon(self._hand_over)
            if alone:
                return

    def _leave(self, call: _Call[Any]) -> trio.lowlevel.Abort:
        with self._mutex:
            if call.state is _State.WAITING:
                self._jobs.remove(call)
            else:
                if call.state is _State.MADE:
                    self._active -= 1
                    self._serve()
                call.state = _State.LEFT
                self.left += 1
        return trio.lowlevel.Abort.SUCCEEDED

    def _hand_over(self) -> None:
        """In the trio thread: give the results that are here to who waits for them."""
        self._coming = False
        while self._returned:
            call = self._returned.popleft()
            if call.state is not _State.LEFT:
                trio.lowlevel.reschedule(call.task, call.outcome)
                continue
            self.left -= 1
            for result in call.results:
                call.drop(result)
            call.ended()
