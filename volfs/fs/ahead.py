"""Of one open file: what is written to it, and the copy that is brought towards the store meanwhile.

It sees the writes of its file and starts, feeds and ends the copy; what the copy does
is `commit.early`, which parts it may have is `core.ahead`.

*Concurrency:* the caller holds the file's lock, or there is nobody else any more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from volfs.commit.early import EarlyCopy
from volfs.commit.staging import StagedFile
from volfs.core.ahead import Parts
from volfs.fs.volume import Volume

__all__ = ["Ahead"]

log = structlog.get_logger(__name__)


class Ahead:
    """See the module. `moved` hears each sign of life of the store, also from threads."""

    def __init__(self, volume: Volume, moved: Callable[[], None]) -> None:
        self._volume = volume
        self._moved = moved
        self._parts: Parts | None = None  # None: nothing is staged, or nothing is brought ahead any more
        self._copy: EarlyCopy | None = None

    def begin(self, existing: int) -> None:
        """The content is in a staged file from now on, with so many bytes of what was there."""
        volume = self._volume
        # A local disk takes a copy as fast as it is read, and a staged file in the store needs none.
        if volume.tasks is not None and not volume.store.local:
            self._parts = Parts(existing)

    @contextmanager
    def writing(self, staged: StagedFile, offset: int, size: int) -> Iterator[None]:
        """Around a write of these bytes. If the file has become a large one by it, its copy begins."""
        parts = self._parts
        if parts is None:
            yield
            return
        parts.changing(offset, size)
        try:
            yield
        except BaseException:
            parts.changing(offset, size)  # some of it may have been written
            raise
        parts.wrote(offset, size)
        if parts.due:
            self._go_on(staged, parts)

    def _go_on(self, staged: StagedFile, parts: Parts) -> None:
        if self._copy is not None:
            self._copy.poke()
            return
        volume = self._volume
        assert volume.staging is not None
        assert volume.tasks is not None
        self._copy = EarlyCopy(volume.store, volume.staging, staged, parts, self._moved)
        volume.tasks.start_soon(self._run, self._copy)

    async def _run(self, copy: EarlyCopy) -> None:
        try:
            await copy.run()
        except Exception:
            self._volume.errors += 1
            log.exception("a copy that was begun early failed unexpectedly")

    def cut(self, size: int) -> None:
        """The file has this size now."""
        if self._parts is not None:
            self._parts.cut(size)

    def take(self) -> EarlyCopy | None:
        """What there is, for a commit. Until the next `begin` nothing more is brought ahead."""
        copy, self._copy = self._copy, None
        self._parts = None
        return copy

    def drop(self) -> None:
        """The staged bytes belong to no name any more."""
        copy = self.take()
        if copy is not None:
            copy.drop()
