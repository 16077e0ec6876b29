"""Copies in the store that nobody wants any more, and taking them away.

*Invariants:* one that cannot be taken away now stays in the queue, for the next commit
or, after the daemon's end, for its successor, which has the rows that tell what it is.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import structlog
import trio

from volfs.errors import StoreError

__all__ = ["Discardable", "clear"]

log = structlog.get_logger(__name__)

#: Also when the daemon ends: tidiness is worth a few seconds of a store that does not answer, no more.
_PATIENCE_S = 2.0


class Discardable(Protocol):
    """An upload or a transfer."""

    async def discard(self) -> None: ...


async def clear(owed: deque[Discardable]) -> None:
    """Take away what can be within `_PATIENCE_S`, whatever ends the task meanwhile."""
    with trio.move_on_after(_PATIENCE_S, shield=True) as scope:
        try:
            while owed:
                await _discard(owed)
        except StoreError as error:
            log.warning("a copy is left in the store until the next commit", error=str(error))
    if scope.cancelled_caught:
        log.warning("a copy is left in the store until the next commit: no answer")


async def _discard(owed: deque[Discardable]) -> None:
    """The first of them, by one task only; it stays owed if it cannot be taken away."""
    copy = owed.popleft()
    try:
        await copy.discard()
    except BaseException:
        owed.append(copy)
        raise
