"""Attributes of nodes: changing modes, owners and times, and user xattrs.

A dirty file's attributes are those of its staged file and go out with its
commit; everything else is changed in the store at once.
"""

from __future__ import annotations

import errno

from volfs.errors import StoreError, VersionChanged
from volfs.fs.tree import Node
from volfs.fs.volume import Volume
from volfs.store.base import Changes

__all__ = ["Attributes"]


class Attributes:
    """See the module."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume

    def path(self, node: Node) -> bytes:
        """The node's path in the store; ESTALE if it has no name any more."""
        path = self._volume.tree.path(node)
        if path is None:
            raise VersionChanged("the file was removed or replaced")
        return path

    def _writable(self) -> None:
        if self._volume.policy.read_only:
            raise StoreError("the volume is mounted read-only", errno=errno.EROFS)

    async def change(self, node: Node, changes: Changes) -> None:
        if changes == Changes():
            return
        self._writable()
        volume = self._volume
        file = node.file
        if file is not None:
            async with file.lock:
                if file.staged is not None:
                    file.staged.change(changes)
                    return
                if volume.tree.path(node) is None and file.reader is not None:
                    await file.reader.change(changes)
                    return
        st = await volume.store.change(self.path(node), changes)
        if st.identity != node.identity:
            raise VersionChanged("the file was replaced")
        volume.settle(node, st, sets_mtime=changes.mtime_ns is not None)

    # -- extended attributes -----------------------------------------------------

    async def getxattr(self, node: Node, name: bytes) -> bytes:
        file = node.file
        if file is not None and file.staged is not None:
            return file.staged.getxattr(name)
        return await self._volume.store.getxattr(self.path(node), name)

    async def listxattr(self, node: Node) -> list[bytes]:
        file = node.file
        if file is not None and file.staged is not None:
            names = file.staged.listxattr()
        else:
            names = await self._volume.store.listxattr(self.path(node))
        return [name for name in names if name.startswith(b"user.")]

    async def setxattr(self, node: Node, name: bytes, value: bytes) -> None:
        self._writable()
        file = node.file
        if file is not None:
            async with file.lock:
                if file.staged is not None:
                    file.staged.setxattr(name, value)
                    return
        await self._volume.store.setxattr(self.path(node), name, value)
        await self._settle(node)

    async def removexattr(self, node: Node, name: bytes) -> None:
        self._writable()
        file = node.file
        if file is not None:
            async with file.lock:
                if file.staged is not None:
                    file.staged.removexattr(name)
                    return
        await self._volume.store.removexattr(self.path(node), name)
        await self._settle(node)

    async def _settle(self, node: Node) -> None:
        """Our change gave the file a new ctime, hence a new version of the same content."""
        try:
            st = await self._volume.store.stat(self.path(node))
        except StoreError:
            return  # it is done; the next look finds out what it made, or that the file was removed
        if st.identity == node.identity:
            self._volume.settle(node, st)
