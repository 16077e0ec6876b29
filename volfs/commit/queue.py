"""Files that wait for their commit: oldest first, a back-off for each, several at once.

Keyed by inode number, never by path (W8). It does not know how to commit: it is
handed a callable. One bad file waits alone; the others go on.

*Concurrency:* one scheduler task and up to `AT_ONCE` attempts, all in the
nursery of `run`. A number is attempted by one task at a time. What an attempt was to
commit may be committed by others while it waits for its turn, and the file be changed
by then: with the file's lock held it asks `owes`.

*Invariants:* what was added after an attempt began is attempted once more.
"""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
import trio

from volfs.core.schedule import backoff_s
from volfs.errors import VolfsError

__all__ = ["AT_ONCE", "CommitQueue"]

log = structlog.get_logger(__name__)

#: Commits at once. One to a remote store is a handful of round trips; more would starve the readers' threads.
AT_ONCE = 16

_SOON_S = 0.001


@dataclass(slots=True)
class _Waiting:
    since_s: float
    due_s: float
    failures: int = 0
    running: bool = False
    settled: bool = False  # nothing is owed any more; only if an attempt runs, else it would not be here
    again: bool = False  # more was added while an attempt ran


class CommitQueue:
    """See the module. `attempt` commits one number, or raises the store's error."""

    def __init__(self, attempt: Callable[[int], Awaitable[None]]) -> None:
        self._attempt = attempt
        self._waiting: dict[int, _Waiting] = {}  # in the order of arrival: oldest first
        self._wake = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._tried = trio.Event()
        self._freed = trio.Event()
        self.failed = 0
        self.last_error: str | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, number: int) -> bool:
        return number in self._waiting

    @property
    def oldest_age_s(self) -> float | None:
        if not self._waiting:
            return None
        return trio.current_time() - min(item.since_s for item in self._waiting.values())

    @property
    def freed(self) -> trio.Event:
        """Set when the next file needs its staged bytes no more: committed, here or elsewhere, or removed."""
        return self._freed

    def add(self, number: int) -> None:
        """This file has bytes to commit; the same number twice is one commit."""
        item = self._waiting.get(number)
        if item is None:
            now = trio.current_time()
            self._waiting[number] = _Waiting(now, now)
            if self._idle.is_set():
                self._idle = trio.Event()
        else:
            item.settled = False
            item.again = item.running
        self._wake.set()

    def owes(self, number: int) -> bool:
        """Whether the bytes of this file were added, and not committed or given up since."""
        item = self._waiting.get(number)
        return item is not None and not item.settled

    def failed_once(self, number: int, error: VolfsError) -> None:
        """Its commit was tried outside the queue (close, fsync) and failed: try again later."""
        self.add(number)
        self._postpone(self._waiting[number], number, error)

    def remove(self, number: int) -> None:
        """It was committed elsewhere, or has no name any more."""
        item = self._waiting.get(number)
        if item is not None:
            item.settled, item.again = True, False
            if not item.running:
                self._discard(number)
        self._tell_freed()

    async def drain(self) -> None:
        """Make everything due now; return when each file was committed or has failed once more."""
        asked = {number: item.failures for number, item in self._waiting.items()}
        now = trio.current_time()
        for item in self._waiting.values():
            item.due_s = now
        self._wake.set()
        while any(
            number in self._waiting and self._waiting[number].failures == failures
            for number, failures in asked.items()
        ):
            await self._tried.wait()

    async def wait_empty(self) -> None:
        await self._idle.wait()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            limit = trio.Semaphore(AT_ONCE)
            while True:
                self._wake = trio.Event()
                # A clock that stops a rounding error short of a due time must not spin.
                now = trio.current_time() + _SOON_S
                next_due = math.inf
                for number, item in list(self._waiting.items()):
                    if item.running:
                        continue
                    if item.due_s > now:
                        next_due = min(next_due, item.due_s)
                        continue
                    await limit.acquire()
                    if self._waiting.get(number) is not item:
                        limit.release()  # it was removed while it waited for a place
                        continue
                    item.running = True
                    nursery.start_soon(self._try, number, item, limit)
                with trio.move_on_at(next_due):
                    await self._wake.wait()

    async def _try(self, number: int, item: _Waiting, limit: trio.Semaphore) -> None:
        try:
            await self._attempt(number)
        except VolfsError as error:
            self._postpone(item, number, error)
        except Exception:
            log.exception("commit failed", inode=number)
            self._postpone(item, number, VolfsError("unexpected error, see the log"))
        else:
            if item.again:
                item.again, item.due_s = False, trio.current_time()
            else:
                self._discard(number)
            self._tell_freed()
        finally:
            item.running = False
            limit.release()
            self._wake.set()

    def _postpone(self, item: _Waiting, number: int, error: VolfsError) -> None:
        item.failures += 1
        item.due_s = trio.current_time() + backoff_s(item.failures, random.random())
        self.failed += 1
        self.last_error = str(error)
        log.warning("commit will be tried again", inode=number, failures=item.failures, error=str(error))
        self._wake.set()
        self._announce()

    def _discard(self, number: int) -> None:
        self._waiting.pop(number, None)
        self._announce()
        if not self._waiting:
            self._idle.set()

    def _tell_freed(self) -> None:
        """Whoever waits for space looks again. A failed try tells nobody: it freed nothing."""
        self._freed.set()
        self._freed = trio.Event()

    def _announce(self) -> None:
        """Whoever drains looks again."""
        self._tried.set()
        self._tried = trio.Event()
