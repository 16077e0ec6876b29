"""What others did to the store: events and polls in, kernel caches dropped.

It compares what the store says now with what this mount told the kernel. It
does not listen itself (`volfs.watch` does).

*Concurrency:* runs in tasks of its own beside the request handlers; it never
waits for the kernel, which a notification may do (`kernel.notify` has a thread
for that).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVarTuple, Unpack

import structlog
import trio

from volfs.errors import VersionChanged, VolfsError
from volfs.fs.names import Names
from volfs.fs.tree import Node, join
from volfs.fs.volume import Volume

__all__ = ["Changes"]

log = structlog.get_logger(__name__)

Args = TypeVarTuple("Args")

#: Looks at once during a poll, so that a slow store is asked in parallel and yet has room for readers.
_LOOKS_AT_ONCE = 16


class Changes:
    """See the module."""

    def __init__(self, volume: Volume, names: Names) -> None:
        self._volume = volume
        self._names = names

    async def happened(self, events: Iterable[tuple[int, bytes, bool]]) -> None:
        """Events as (directory's number, name, content was written), of one batch."""
        directories: dict[int, None] = {}
        written: dict[tuple[int, bytes], bool] = {}
        for number, name, content in events:
            directories[number] = None
            written[number, name] = written.get((number, name), False) or content
        for (number, name), content in written.items():
            parent = self._volume.tree.by_number.get(number)
            if parent is not None and name in parent.children:
                await self._guarded(self._recheck, parent, name, content)
        for number in directories:
            node = self._volume.tree.by_number.get(number)
            if node is not None:
                await self._guarded(self._look, node)

    async def everything(self) -> None:
        """Events were lost, or a user asks: look at all that is known."""
        for node in list(self._volume.tree.by_number.values()):
            if node.number in self._volume.tree.by_number:
                for name in list(node.children):
                    if name in node.children:
                        await self._guarded(self._recheck, node, name, False)
                await self._guarded(self._look, node)

    async def poll(self, nodes: list[Node]) -> None:
        """Look at these nodes: open files, whose mappings would otherwise never learn of a change."""
        limit = trio.CapacityLimiter(_LOOKS_AT_ONCE)

        async def one(node: Node) -> None:
            async with limit:
                await self._guarded(self._look, node)

        async with trio.open_nursery() as nursery:
            for node in nodes:
                nursery.start_soon(one, node)

    async def _guarded(self, function: Callable[[Unpack[Args]], Awaitable[None]], *args: *Args) -> None:
        """A change that cannot be looked at must not stop the others."""
        try:
            await function(*args)
        except VolfsError as error:
            log.debug("cannot look at a change", error=str(error))
        except Exception:
            self._volume.errors += 1
            log.exception("looking at a change failed")

    async def _look(self, node: Node) -> None:
        before = node.stat.version
        try:
            await self._volume.look(node, force=True)
        except VersionChanged:
            return  # gone: the kernel was told
        if node.stat.version != before and not node.is_file:
            self._volume.notifier.attributes(node.number)

    async def _recheck(self, parent: Node, name: bytes, content: bool) -> None:
        volume = self._volume
        while True:
            child = parent.children.get(name)
            if child is None or child.dirty:
                return
            path = volume.tree.path(parent)
            if path is None:
                return
            epoch = (parent.epoch, child.epoch)
            st = await volume.stat(join(path, name), child)
            if parent.children.get(name) is child and (parent.epoch, child.epoch) == epoch:
                break
        if st is None:
            volume.lost_name(parent, name)
            return
        same = st.identity == child.identity and st.version == child.stat.version
        if not same:
            await self._names.bind(parent, name, st)
            if not child.is_file:
                volume.notifier.attributes(child.number)
        elif content and volume.racy(st):
            # Written twice within one tick of the clock: the times cannot tell, the event can.
            child.stale_pages = True
            volume.notifier.content(child.number)
