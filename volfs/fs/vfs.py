"""The file system, without a transport: plain values in, plain values or a VolfsError out.

One method a request. It owns the table of open directories and the counting of
lookups; names, files and attributes are decided in the modules that it puts
together.

*Concurrency:* each request is a task. A method that answers an `Entry` counts
the lookup before it returns and awaits nothing after, so that a FORGET can
never overtake its LOOKUP.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, NamedTuple

import trio

from volfs.errors import NotFound, StoreError
from volfs.fs.attributes import Attributes
from volfs.fs.changes import Changes as Watched
from volfs.fs.control import PREFIX, Control
from volfs.fs.creating import Creations
from volfs.fs.files import Files
from volfs.fs.handles import Opened
from volfs.fs.handoff import Handoff
from volfs.fs.listing import Listing
from volfs.fs.names import Names
from volfs.fs.repairs import Repairs
from volfs.fs.siblings import Siblings
from volfs.fs.tree import Node
from volfs.fs.volume import Volume
from volfs.fs.warming import Warming
from volfs.store.base import Capacity, Changes, Owner, Stat

__all__ = ["Caller", "Entry", "Vfs"]


class Caller(NamedTuple):
    """Who asks. `thread` is the kernel's number of the calling thread."""

    uid: int
    gid: int
    thread: int


class Entry(NamedTuple):
    """What the kernel is told of a node, and for how many seconds it may believe it."""

    number: int
    stat: Stat
    timeout_s: float


class Vfs:
    """See the module."""

    def __init__(
        self,
        volume: Volume,
        about: Callable[[], dict[str, Any]],
        creates: Callable[[int, bytes], bool] = lambda thread, name: False,
    ) -> None:
        self.volume = volume
        self.names = Names(volume)
        self.siblings = volume.siblings = Siblings(volume, self.names)
        self._creations = Creations(volume, creates)
        self.files = Files(volume, self.names, self._creations)
        self.attributes = Attributes(volume)
        self.changes = Watched(volume, self.names)
        self.repairs = Repairs(volume, self.changes.happened, about)
        parts = (Warming(volume, self.files), Handoff(volume, self.files))
        self.control = Control(volume, self.files, self.repairs, parts, about, self.changes.everything)
        self._listings: dict[int, Listing] = {}
        self._last_listing = 0

    def _node(self, number: int) -> Node:
        return self.volume.tree.get(number)

    def _owner(self, caller: Caller) -> Owner:
        return Owner(caller.uid, caller.gid) if self.volume.policy.own_files else Owner(None, None)

    def _entry(self, node: Node) -> Entry:
        return Entry(node.number, self.volume.local_stat(node), self.volume.timeout_s(node))

    def _found(self, node: Node) -> Entry:
        """As _entry, and the kernel holds one lookup more."""
        node.lookups += 1
        return self._entry(node)

    def forget(self, forgotten: list[tuple[int, int]]) -> None:
        for number, count in forgotten:
            self.volume.tree.forget(number, count)

    # -- names -----------------------------------------------------------------

    async def lookup(self, parent: int, name: bytes, caller: Caller) -> Entry:
        directory = self._node(parent)
        if self._creations.is_about_to_be(directory, name, caller.thread):
            self.volume.second_tries.missed(caller.thread)
            raise NotFound("nothing was there lately, and it is about to be made")
        asked_s = trio.current_time()
        try:
            node = await self.names.find(directory, name, force=False)
        except NotFound:
            self.volume.second_tries.missed(caller.thread)
            self._creations.missed(directory, name, caller.thread, asked_s)
            raise
        self.volume.second_tries.found(parent, name, node)
        return self._found(node)

    async def mkdir(self, parent: int, name: bytes, mode: int, caller: Caller) -> Entry:
        return self._found(await self.names.mkdir(self._node(parent), name, mode, self._owner(caller)))

    async def mknod(self, parent: int, name: bytes, mode: int, rdev: int, caller: Caller) -> Entry:
        return self._found(await self.names.mknod(self._node(parent), name, mode, rdev, self._owner(caller)))

    async def symlink(self, parent: int, name: bytes, target: bytes, caller: Caller) -> Entry:
        return self._found(await self.names.symlink(self._node(parent), name, target, self._owner(caller)))

    async def link(self, number: int, parent: int, name: bytes) -> Entry:
        return self._found(await self.names.link(self._node(number), self._node(parent), name))

    async def unlink(self, parent: int, name: bytes) -> None:
        await self.names.unlink(self._node(parent), name)

    async def rmdir(self, parent: int, name: bytes) -> None:
        await self.names.rmdir(self._node(parent), name)

    async def rename(self, parent: int, name: bytes, new_parent: int, new_name: bytes, flags: int) -> None:
        await self.names.rename(self._node(parent), name, self._node(new_parent), new_name, flags)

    async def readlink(self, number: int) -> bytes:
        return await self.volume.store.readlink(self.attributes.path(self._node(number)))

    # -- attributes ------------------------------------------------------------

    async def getattr(self, number: int) -> Entry:
        node = self._node(number)
        st = await self.volume.look(node)
        return Entry(number, st, self.volume.timeout_s(node))

    async def setattr(self, number: int, changes: Changes, size: int | None) -> Entry:
        node = self._node(number)
        if size is not None:
            await self.files.truncate(node, size)
        await self.attributes.change(node, changes)
        try:
            st = await self.volume.look(node)
        except StoreError:
            return Entry(number, self.volume.local_stat(node), 0.0)  # it is done all the same
        return Entry(number, st, self.volume.timeout_s(node))

    async def getxattr(self, number: int, name: bytes, caller: Caller) -> bytes:
        # The kernel asks for security.capability at every write: answer before anything else.
        if not name.startswith(b"user."):
            raise StoreError("only user attributes are kept", errno=errno.EOPNOTSUPP)
        node = self._node(number)
        if name.startswith(PREFIX):
            return await self.control.get(node, name, caller.uid)
        return await self.attributes.getxattr(node, name)

    async def setxattr(self, number: int, name: bytes, value: bytes, caller: Caller) -> None:
        if not name.startswith(b"user."):
            raise StoreError("only user attributes are kept", errno=errno.EOPNOTSUPP)
        node = self._node(number)
        if name == PREFIX + b"prefetch":
            self.siblings.hint(node, value.split(b"\0"), caller.thread)
        elif name.startswith(PREFIX):
            await self.control.set(node, name, value, caller.uid)
        else:
            await self.attributes.setxattr(node, name, value)

    async def removexattr(self, number: int, name: bytes) -> None:
        if not name.startswith(b"user.") or name.startswith(PREFIX):
            raise StoreError("only user attributes are kept", errno=errno.EOPNOTSUPP)
        await self.attributes.removexattr(self._node(number), name)

    async def listxattr(self, number: int) -> list[bytes]:
        return await self.attributes.listxattr(self._node(number))

    async def statfs(self) -> Capacity:
        return await self.volume.store.capacity()

    # -- files -----------------------------------------------------------------

    async def open(self, number: int, flags: int, caller: Caller) -> Opened:
        return await self.files.open(self._node(number), flags, caller.thread)

    async def create(
        self, parent: int, name: bytes, mode: int, flags: int, caller: Caller
    ) -> tuple[Entry, Opened]:
        node, opened = await self.files.create(
            self._node(parent), name, mode, flags, self._owner(caller), caller.thread
        )
        return self._found(node), opened

    async def read(self, handle: int, offset: int, size: int) -> bytes | bytearray | memoryview:
        return await self.files.read(handle, offset, size)

    async def write(self, handle: int, offset: int, data: bytes | memoryview) -> int:
        return await self.files.write(handle, offset, data)

    async def flush(self, handle: int) -> None:
        await self.files.flush(handle)

    async def fsync(self, handle: int) -> None:
        await self.files.fsync(handle)

    async def release(self, handle: int) -> None:
        await self.files.release(handle)

    # -- directories -----------------------------------------------------------

    async def opendir(self, number: int) -> int:
        node = self._node(number)
        listing = Listing(self.volume, self.names, node)
        await listing.open()
        node.handles += 1
        self._last_listing += 1
        self._listings[self._last_listing] = listing
        return self._last_listing

    async def readdir(self, handle: int, offset: int, emit: Callable[[bytes, Entry, int], bool]) -> None:
        """Call `emit(name, entry, next offset)` until it answers False; it is counted as a lookup if True."""

        def give(name: bytes, node: Node, after: int) -> bool:
            if not emit(name, self._entry(node), after):
                return False
            node.lookups += 1
            return True

        await self._listings[handle].read(offset, give)

    async def releasedir(self, handle: int) -> None:
        listing = self._listings.pop(handle)
        listing.close()
        listing.node.handles -= 1
        self.volume.tree.drop(listing.node)

    async def fsyncdir(self, handle: int) -> None:
        """Names made in the directory are safe on return, and so are the closed files behind them."""
        node = self._listings[handle].node
        for child in list(node.children.values()):
            if child.file is not None and child.file.acknowledged:
                await child.file.commit(durable=True)
        path = self.volume.tree.path(node)
        if path is not None and not self.volume.policy.read_only:
            await self.volume.store.sync_directory(path)
