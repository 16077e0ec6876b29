"""Deadlines and retries around a store that may be slow, fail for a moment, or hang.

Every call but a commit's own ends within its deadline with ETIMEDOUT. Calls that
change nothing are tried again after errors that pass by themselves; a change is
not, because it may have been made although its answer was lost. Once a call ran
into its deadline and nothing was answered meanwhile, the store counts as away:
calls fail at once but for one now and then, until one is answered.

The attributes of the root and the capacity are answered from memory if the store
does not answer at once: `df` and `ls /` must never hang (B3).

Not here: how a call is left behind (`store.threads`), and the patience with a
commit, which depends on whether bytes move (`fs.patience`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import structlog
import trio

from volfs.core.schedule import retry_s
from volfs.core.versions import Version
from volfs.errors import StoreError, StoreTimeout
from volfs.store.base import (
    Capacity,
    Changes,
    DirectoryReader,
    Filled,
    Observer,
    Owner,
    Reader,
    Stat,
    Store,
    Transfer,
    Upload,
)

__all__ = ["RetryingStore"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

_TRIES: Final = 3

#: One call now and then finds out whether the store is back; it has this long, and all others fail at once:
#: the kernel sends the lookups of one directory one by one, so that their waits would add up.
_AWAY_S: Final = 2.0
_ASK_AGAIN_S: Final = 1.0

#: `df` and `stat` of the root answer within a second, whatever the store does.
_AT_ONCE_S: Final = 0.5

#: A copy of so many bytes a second is slow, not stuck.
_SLOWEST_BYTES_PER_S: Final = 1e6


class Deadlines:
    """The deadlines of one store's calls, and whether it answers. Times by trio's clock."""

    def __init__(self, deadline_s: float) -> None:
        self._deadline_s = deadline_s
        self.away = False
        self._answered_at = -math.inf
        self._ask_again_at = -math.inf
        self.timeouts = 0
        self.retries = 0

    async def once(self, function: Callable[[], Awaitable[T]], *, more_s: float = 0.0) -> T:
        """Call; StoreTimeout at the deadline, or at once while the store is away and was just asked."""
        deadline_s = self._deadline_s + more_s
        began = trio.current_time()
        if self.away:
            if began < self._ask_again_at:
                raise StoreTimeout("the store does not answer")
            deadline_s = min(deadline_s, _AWAY_S)
            self._ask_again_at = began + deadline_s + _ASK_AGAIN_S
        with trio.CancelScope(deadline=began + deadline_s):  # `move_on_after` costs half as much again
            try:
                result = await function()
            except StoreError as error:
                if not isinstance(error, StoreTimeout):
                    self.answered()  # an error is an answer
                raise
            self.answered()
            return result
        self._timed_out(began, deadline_s)
        raise StoreTimeout(f"the store did not answer within {deadline_s:g} s")

    def answered(self) -> None:
        """The store said something: it is not away."""
        self._answered_at = trio.current_time()
        if self.away:
            log.warning("the store answers again")
            self.away = False

    def _timed_out(self, began: float, deadline_s: float) -> None:
        self.timeouts += 1
        if self._answered_at >= began:
            return  # it answers others: what hangs is this one file
        if not self.away:
            log.error("the store does not answer", deadline_s=deadline_s)
        self.away = True
        self._ask_again_at = trio.current_time() + _ASK_AGAIN_S

    async def again(self, function: Callable[[], Awaitable[T]]) -> T:
        """Call, and again after an error that may pass; the deadline is for all tries together."""

        async def tries() -> T:
            failures = 0
            while True:
                try:
                    return await function()
                except StoreError as error:
                    failures += 1
                    if not error.passes or failures == _TRIES:
                        raise
                self.retries += 1
                await trio.sleep(retry_s(failures, random.random()))

        return await self.once(tries)


class RetryingStore:
    """`store.base.Store` over another one."""

    def __init__(self, inner: Store, deadline_s: float) -> None:
        self._inner = inner
        self.deadlines = Deadlines(deadline_s)
        self.local = inner.local
        self.granularity_ns = inner.granularity_ns
        self._root: Stat | None = None
        self._capacity: Capacity | None = None

    @property
    def requests(self) -> Counter[str]:
        return self._inner.requests

    @property
    def read_bytes(self) -> int:
        return self._inner.read_bytes

    @property
    def written_bytes(self) -> int:
        return self._inner.written_bytes

    # -- calls that change nothing ---------------------------------------------

    async def stat(self, path: bytes) -> Stat:
        if path:
            return await self.deadlines.again(lambda: self._inner.stat(path))
        self._root = await self._from_memory(lambda: self._inner.stat(b""), self._root)
        return self._root

    async def capacity(self) -> Capacity:
        self._capacity = await self._from_memory(self._inner.capacity, self._capacity)
        return self._capacity

    async def _from_memory(self, function: Callable[[], Awaitable[T]], known: T | None) -> T:
        if known is None:
            return await self.deadlines.again(function)
        with trio.move_on_after(0 if self.deadlines.away else _AT_ONCE_S):
            try:
                return await function()
            except StoreError as error:
                log.debug("answered from memory", error=str(error))
        return known

    async def open(self, path: bytes) -> Reader:
        return RetryingReader(await self.deadlines.again(lambda: self._inner.open(path)), self.deadlines)

    async def fetch(
        self, path: bytes, most_bytes: int, known: Stat | None = None
    ) -> tuple[Stat, bytes | None]:
        return await self.deadlines.again(lambda: self._inner.fetch(path, most_bytes, known))

    def reader(self, fd: int) -> Reader:
        return RetryingReader(self._inner.reader(fd), self.deadlines)

    async def scan(self, path: bytes) -> DirectoryReader:
        return RetryingDirectoryReader(
            await self.deadlines.again(lambda: self._inner.scan(path)), self.deadlines
        )

    async def readlink(self, path: bytes) -> bytes:
        return await self.deadlines.again(lambda: self._inner.readlink(path))

    async def getxattr(self, path: bytes, name: bytes) -> bytes:
        return await self.deadlines.again(lambda: self._inner.getxattr(path, name))

    async def listxattr(self, path: bytes) -> list[bytes]:
        return await self.deadlines.again(lambda: self._inner.listxattr(path))

    def is_moved(self, st: Stat, version: Version) -> bool:
        return self._inner.is_moved(st, version)

    # -- changes ---------------------------------------------------------------

    async def mkdir(self, path: bytes, mode: int, owner: Owner) -> Stat:
        return await self.deadlines.once(lambda: self._inner.mkdir(path, mode, owner))

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner) -> Stat:
        return await self.deadlines.once(lambda: self._inner.mknod(path, mode, rdev, owner))

    async def symlink(self, path: bytes, target: bytes, owner: Owner) -> Stat:
        return await self.deadlines.once(lambda: self._inner.symlink(path, target, owner))

    async def link(self, path: bytes, new: bytes) -> Stat:
        return await self.deadlines.once(lambda: self._inner.link(path, new))

    async def unlink(self, path: bytes) -> None:
        await self.deadlines.once(lambda: self._inner.unlink(path))

    async def rmdir(self, path: bytes) -> None:
        await self.deadlines.once(lambda: self._inner.rmdir(path))

    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        await self.deadlines.once(lambda: self._inner.rename(old, new, flags))

    async def change(self, path: bytes, changes: Changes) -> Stat:
        return await self.deadlines.once(lambda: self._inner.change(path, changes))

    async def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        await self.deadlines.once(lambda: self._inner.setxattr(path, name, value))

    async def removexattr(self, path: bytes, name: bytes) -> None:
        await self.deadlines.once(lambda: self._inner.removexattr(path, name))

    async def sync_directory(self, path: bytes) -> None:
        await self.deadlines.once(lambda: self._inner.sync_directory(path))

    async def keep_left(self, trace: str, path: bytes) -> bytes | None:
        return await self.deadlines.once(lambda: self._inner.keep_left(trace, path))

    async def clear_left(self) -> None:
        await self.deadlines.once(self._inner.clear_left)

    # -- commits: as long as they need, seen through by their owner ---------------

    async def upload(
        self,
        staged: int,
        name: str | None,
        *,
        durable: bool,
        observe: Observer | None,
        replaces: bool = False,
    ) -> Upload:
        upload = await self._inner.upload(staged, name, durable=durable, observe=observe, replaces=replaces)
        self.deadlines.answered()
        return upload

    async def begin(self, staged: int) -> Transfer:
        transfer = await self._inner.begin(staged)
        self.deadlines.answered()
        return transfer

    async def overwrite(self, staged: int, path: bytes, observe: Observer | None) -> Stat:
        st = await self._inner.overwrite(staged, path, observe)
        self.deadlines.answered()
        return st

    def close(self) -> None:
        self._inner.close()


class RetryingReader:
    """`store.base.Reader` over another one."""

    __slots__ = ("_deadlines", "_inner")

    def __init__(self, inner: Reader, deadlines: Deadlines) -> None:
        self._inner = inner
        self._deadlines = deadlines

    async def read(self, offset: int, size: int) -> bytes | bytearray | memoryview:
        return await self._deadlines.again(lambda: self._inner.read(offset, size))

    async def read_into(self, buffer: memoryview, offset: int) -> Filled:
        # A try that failed has ended, so the next one may have the buffer; one that hangs is the last.
        return await self._deadlines.again(lambda: self._inner.read_into(buffer, offset))

    async def stat(self) -> Stat:
        return await self._deadlines.again(self._inner.stat)

    async def change(self, changes: Changes) -> Stat:
        return await self._deadlines.once(lambda: self._inner.change(changes))

    async def copy_to(self, target: int, size: int) -> None:
        await self._deadlines.once(
            lambda: self._inner.copy_to(target, size), more_s=size / _SLOWEST_BYTES_PER_S
        )

    async def overwrite(self, staged: int, observe: Observer | None) -> Stat:
        return await self._inner.overwrite(staged, observe)

    async def sync(self) -> None:
        await self._deadlines.once(self._inner.sync)

    def close(self) -> None:
        self._inner.close()


class RetryingDirectoryReader:
    """`store.base.DirectoryReader` over another one. A pass is not taken up again where it broke off."""

    __slots__ = ("_deadlines", "_inner")

    def __init__(self, inner: DirectoryReader, deadlines: Deadlines) -> None:
        self._inner = inner
        self._deadlines = deadlines

    async def names(self, most: int) -> list[bytes]:
        return await self._deadlines.once(lambda: self._inner.names(most))

    async def stats(self, names: list[bytes]) -> list[tuple[bytes, Stat]]:
        return await self._deadlines.again(lambda: self._inner.stats(names))

    def close(self) -> None:
        self._inner.close()
