"""Kernels that are told in vain: in one process there is none, or it has not heard yet."""

from __future__ import annotations

import trio

__all__ = ["Deaf"]


class Deaf:
    """A `volfs.fs.volume.Notifier` whose word reaches nobody."""

    def attributes(self, number: int) -> None:
        pass

    def content(self, number: int) -> None:
        pass

    def entry(self, parent: int, name: bytes, deleted: int) -> None:
        pass

    async def told(self) -> None:
        await trio.lowlevel.checkpoint()
