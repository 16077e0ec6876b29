"""What a writer does when the local disk is full: clean blocks go, then it waits for commits, then ENOSPC.

It knows neither files nor what the action does, and it refuses nothing because of
the cache's limit: only the disk refuses, so a file may be larger than the limit.

The rule. A write that grew the staged bytes makes clean blocks leave until all fits
under the limit again. A write that the disk refused (ENOSPC, EDQUOT) is tried again
after clean blocks were given up, and once there are none, after each commit that
succeeded, for at most `PATIENCE_S`; then the application gets the errno. If nobody
else has staged bytes, nothing can come free, and it gets it at once.

*Concurrency:* who waits holds nothing. The action takes its locks itself and lets go
of them when it fails, and of what it had half done: a writer that kept its file's lock
would hold up the commit of that very file and with it a place in the queue, and
writers that kept half a copy each would wait for each other.

*Invariants:* the errno is the last attempt's own. Whatever is not `DiskFull` passes
through at once: the store's own ENOSPC, say, also where staged files lie in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

import structlog
import trio

from volfs.commit.queue import CommitQueue
from volfs.commit.staging import DiskFull, StagedFile, Staging

__all__ = ["PATIENCE_S", "WriteRoom"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A commit of a few GiB to a busy store fits into it. Much longer, and a job that could have failed with a
#: clear errno looks hung; the kernel complains of hung tasks after 120 s.
PATIENCE_S: Final = 30.0

#: Space can come back without a commit of ours (somebody deletes a file): look this often, too.
_LOOK_AGAIN_S: Final = 1.0


def _nothing() -> StagedFile | None:
    return None


def _others_hold(staging: Staging, own: StagedFile | None) -> bool:
    """Whether anybody else's commit could free anything."""
    return staging.allocated > (staging.allocated_of(own) if own is not None else 0)


class Yielding(Protocol):
    """What shares the disk with staged files and makes way for them: the cache."""

    async def yield_space(self, size: int) -> bool: ...

    async def shrink(self) -> None: ...


class WriteRoom:
    """See the module. `cache` None: no blocks are kept on this disk. `staging` None: nobody writes."""

    def __init__(
        self,
        staging: Staging | None,
        cache: Yielding | None,
        queue: CommitQueue,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self._staging = staging
        self._cache = cache
        self._queue = queue
        self._patience_s = patience_s
        self.waiting = 0  # writers, now
        self.refused = 0  # writers that got the errno, so far

    async def with_room(
        self, action: Callable[[], Awaitable[T]], size: int, own: Callable[[], StagedFile | None] = _nothing
    ) -> T:
        """What `action` answers. It may run several times: on an error it must have changed nothing.

        `size`: about the bytes that it needs. `own`: the staged file that it writes, for which nobody waits.
        """
        cache, staging = self._cache, self._staging
        if staging is None or staging.in_store:
            return await action()
        began_s: float | None = None
        while True:
            try:
                result = await action()
            except DiskFull as error:
                freed = self._queue.freed
                if cache is not None and await cache.yield_space(size):
                    continue
                now = trio.current_time()
                began_s = now if began_s is None else began_s
                left_s = began_s + self._patience_s - now
                if left_s <= 0 or not _others_hold(staging, own()):
                    self.refused += 1
                    log.warning("no space for a write", waited_s=round(now - began_s, 1), error=str(error))
                    raise
            else:
                if cache is not None:
                    await cache.shrink()
                return result
            await self._wait(freed, min(left_s, _LOOK_AGAIN_S))

    async def _wait(self, freed: trio.Event, at_most_s: float) -> None:
        self.waiting += 1
        try:
            with trio.move_on_after(at_most_s):
                await freed.wait()
        finally:
            self.waiting -= 1

    def close(self) -> None:
        """The mount ends: who waits gets its errno within `_LOOK_AGAIN_S`, and nobody waits any more."""
        self._patience_s = 0.0
