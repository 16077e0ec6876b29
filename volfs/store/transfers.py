"""Bringing staged files into a directory store: whole in one call, or in parts while they are being written.

What a copy is, is `store.copies`; how it gets a name, `store.uploading`.

*Concurrency:* the trio thread; what takes time is done in worker threads, by one at a time for each copy.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from volfs.core.spans import Extent
from volfs.store.attributes import to_stat
from volfs.store.base import Observer, Stat, Transfer, Upload
from volfs.store.copies import Copy, copy_staged, discard
from volfs.store.reserved import LANES
from volfs.store.uploading import CopiedUpload, StagedUpload

__all__ = ["Transfers"]

T = TypeVar("T")


class Place(Protocol):
    """What a transfer needs of its store."""

    local: bool
    written_bytes: int

    @property
    def root(self) -> int: ...

    @property
    def staging(self) -> int: ...

    def lane(self, number: int) -> int:
        """One of LANES directories for copies. Blocking."""
        ...

    async def call(
        self,
        function: Callable[..., T],
        *args: object,
        thread: bool = False,
        drop: Callable[[T], None] = ...,
        ended: Callable[[], None] = ...,
    ) -> T: ...

    def let_go(self, fd: int) -> None: ...


class Transfers:
    """`Store.upload` and `Store.begin` of a directory."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._last_lane = 0

    async def upload(
        self,
        staged: int,
        name: str | None,
        *,
        durable: bool,
        observe: Observer | None,
        replaces: bool = False,
    ) -> Upload:
        place = self._place
        if name is not None:
            if durable:
                await place.call(os.fsync, staged, thread=True)
            return StagedUpload(place, name, staged, to_stat(os.fstat(staged)).version)
        copy, st = await place.call(
            self._upload, staged, observe, self._lane(), replaces, thread=True, drop=self._drop_whole
        )
        place.written_bytes += st.size
        return CopiedUpload(place, copy, staged, st.version)

    def _upload(self, staged: int, observe: Observer | None, lane: int, replaces: bool) -> tuple[Copy, Stat]:
        parallel = not self._place.local
        return copy_staged(staged, self._place.lane(lane), observe, parallel=parallel, replaces=replaces)

    def _drop_whole(self, uploaded: tuple[Copy, Stat]) -> None:
        self._drop(uploaded[0])

    def _drop(self, copy: Copy) -> None:
        for fd in copy.take():
            self._place.let_go(fd)

    async def begin(self, staged: int) -> Transfer:
        source = os.dup(staged)  # now: whoever has it may close it while we wait
        try:
            copy = await self._place.call(self._begin, self._lane(), thread=True, drop=self._drop)
        except BaseException:
            os.close(source)
            raise
        return CopyTransfer(self._place, copy, staged, source)

    def _begin(self, lane: int) -> Copy:
        return Copy(self._place.lane(lane), parallel=not self._place.local)

    def _lane(self) -> int:
        self._last_lane = (self._last_lane + 1) % LANES
        return self._last_lane


class CopyTransfer:
    """`store.base.Transfer`. What a call uses that was left behind is let go when it ends."""

    def __init__(self, place: Place, copy: Copy, staged: int, source: int) -> None:
        self._place = place
        self._copy = copy
        self._staged = staged
        self._source = source  # the same file, by a descriptor of our own
        self._users = 0
        self._over = False
        self._closing = False

    async def bring(self, extents: Sequence[Extent], observe: Observer | None) -> None:
        self._place.written_bytes += await self._use(_bring, self._copy, self._source, extents, observe)

    async def finish(self) -> Upload:
        st = await self._use(_finish, self._copy, self._source)
        self._over = True
        os.close(self._source)
        return CopiedUpload(self._place, self._copy, self._staged, st.version)

    async def discard(self) -> None:
        if not self._over:
            self._over = self._closing = True
            self._close_if_idle()
        await self._place.call(discard, self._copy.directory, self._copy.name)

    async def _use(self, function: Callable[..., T], *args: object) -> T:
        self._users += 1
        return await self._place.call(function, *args, thread=True, ended=self._ended)

    def _ended(self) -> None:
        self._users -= 1
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._closing and not self._users:
            os.close(self._source)
            for fd in self._copy.take():
                self._place.let_go(fd)


def _bring(copy: Copy, source: int, extents: Sequence[Extent], observe: Observer | None) -> int:
    return copy.bring(source, extents, observe)


def _finish(copy: Copy, source: int) -> Stat:
    return copy.finish(source)
