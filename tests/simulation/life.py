"""One life of a simulated host, from its boot to its end or its crash, and schedules that a seed decides.

It makes three things of the real world deterministic: threads (a blocking call is made in the trio thread,
some
checkpoints late), names (uuid4), and crashes. It knows neither stores nor files.

*A crash* is what `kill -9` leaves: `Life.end` cancels all tasks of the host, and from that step on every
effect
on a disk raises `Died` instead, also in handlers that would clean up. `effect` stands before each effect.

*Concurrency:* one trio run; whose effect it is, a context variable tells, which tasks inherit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from unittest.mock import patch
from uuid import UUID

import trio

from volfs.store.threads import StoreThreads

__all__ = ["Died", "Life", "current", "deterministic", "effect", "pause"]

T = TypeVar("T")

#: Up to so many checkpoints in a row: enough that any two of a few tasks can overtake each other.
_MOST_CHECKPOINTS = 3


class Died(BaseException):
    """The host is dead. No handler of the product catches it for good."""


class Life:
    """See the module. `left`: effects until the crash that was asked for; None: none.

    `changed` is called after each blocking call, with what made it.
    """

    def __init__(self, changed: Callable[[str], None], left: int | None = None) -> None:
        self.dead = False
        self.changed = changed
        self.left = left
        self.scope = trio.CancelScope()

    def effect(self) -> None:
        """Something is about to change on a disk."""
        if self.left is not None and not self.dead:
            if self.left == 0:
                self.end()
            else:
                self.left -= 1
        if self.dead:
            raise Died

    def end(self) -> None:
        """Crash, now."""
        self.dead = True
        self.scope.cancel()


#: Whose task this is; None: the outside's.
current: ContextVar[Life | None] = ContextVar("current", default=None)


def effect() -> None:
    """Count an effect of the host whose task this is."""
    life = current.get()
    if life is not None:
        life.effect()


async def pause() -> None:
    """Let others overtake, as the seed says."""
    for _ in range(random.randint(0, _MOST_CHECKPOINTS)):
        await trio.lowlevel.checkpoint()


async def _run_here(
    function: Callable[..., T], *args: Any, abandon_on_cancel: bool = False, limiter: object = None
) -> T:
    """In place of `trio.to_thread.run_sync`: the call in one piece, at some moment."""
    await trio.lowlevel.checkpoint_if_cancelled()
    with trio.CancelScope(shield=not abandon_on_cancel):
        await pause()
        life = current.get()
        if life is not None and life.dead:
            raise Died
        result = function(*args)
        if life is not None:
            life.changed("a thread")
        await pause()
    return result


async def _call_here(threads: StoreThreads, call: Any) -> Any:
    """In place of a thread of the store's: likewise, and what nobody takes is dropped."""
    try:
        return await _run_here(call.work, abandon_on_cancel=True)
    except trio.Cancelled:
        for result in call.results:
            call.drop(result)
        raise


def _fsync(fd: int) -> None:
    """Power cuts are not simulated, and a disk takes long over this."""


def _seeded_uuid4() -> UUID:
    return UUID(int=random.getrandbits(128), version=4)


@contextmanager
def deterministic() -> Iterator[None]:
    """Nothing in here depends on threads, or on names drawn from the system's randomness."""
    with (
        patch("trio.to_thread.run_sync", _run_here),
        patch("volfs.store.threads.StoreThreads._work", _call_here),
        patch("os.fsync", _fsync),
        patch("volfs.cache.reconcile._FOLDERS", 2),  # making 256 takes longer than all the rest
        patch("volfs.commit.staging.uuid4", _seeded_uuid4),
        patch("volfs.store.copies.uuid4", _seeded_uuid4),
        patch("volfs.crash.point", lambda name: _at_point(name)),
    ):
        yield


def _at_point(name: str) -> None:
    """A crash point of the product. Where a handler would clean up behind it, no crash is simulated."""
    if not name.startswith("upload."):
        effect()
