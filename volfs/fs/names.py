"""Names: lookup, create, link, rename, remove. What POSIX says about them, over a store.

It decides what a name means here (a file that is not committed yet is known
here only) and does not touch content, except that a link is a commit point.

*Concurrency:* the kernel holds a directory's lock over each change of a name in
it, so two changes of one name never run at once on one mount. What does run
beside them are commits, lookups that revalidate, and change events; an answer of
the store is applied only if nothing of ours changed the directory meanwhile
(`Node.epoch`).
"""

from __future__ import annotations

import errno
from contextlib import AsyncExitStack

import structlog
import trio

from volfs import crash
from volfs.commit.journal import Renaming
from volfs.errors import AlreadyExists, NotFound, NotPermitted, StoreError
from volfs.fs.tree import ROOT, Node, join
from volfs.fs.volume import Volume
from volfs.store.base import RESERVED, Owner, Stat

__all__ = ["RENAME_EXCHANGE", "RENAME_NOREPLACE", "Names"]

log = structlog.get_logger(__name__)

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2


class Names:
    """See the module. Who gets a Node from here counts its lookup, before any await."""

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._tree = volume.tree
        self._store = volume.store

    async def find(self, parent: Node, name: bytes, *, force: bool = True) -> Node:
        """The node behind a name, as of now; NotFound. Without `force`, as of `Volume.fresh`."""
        volume = self._volume
        if parent.number == ROOT and name == RESERVED:
            raise NotFound("a reserved name")
        while True:
            child = parent.children.get(name)
            if child is not None and (child.dirty or (not force and self.is_fresh(child))):
                return child
            path = self._tree.directory_path(parent)
            volume.watch(parent, path)
            if not force:
                volume.siblings.missed(parent, name)
            epoch, asked_s = parent.epoch, trio.current_time()
            st = await volume.stat(join(path, name), child)
            if parent.epoch != epoch or parent.children.get(name) is not child:
                continue
            if st is None:
                if child is not None and not volume.lost_name(parent, name):
                    return child
                raise NotFound("no such name")
            return await self.bind(parent, name, st, asked_s)

    def is_fresh(self, node: Node) -> bool:
        """Whether the node's name need not be asked for. With further names, nobody knows which one was."""
        return self._volume.fresh(node) and (node.is_dir or len(node.names) == node.stat.nlink == 1)

    async def bind(self, parent: Node, name: bytes, st: Stat, asked_s: float | None = None) -> Node:
        """The store has `st` at this name: its node, with its attributes brought up to date.

        `asked_s`: when it was asked, if not just now.
        """
        volume = self._volume
        child = parent.children.get(name)
        if child is not None and child.identity != st.identity and not child.dirty:
            file = child.file
            if file is not None and await file.succeed(st, join(self._tree.directory_path(parent), name)):
                return child
            now = parent.children.get(name)
            if now is not None and now is not child:
                return now  # somebody has asked later than we did
            if now is child and not child.dirty and not volume.lost_name(parent, name):
                self._tree.identify(child, st)
                return child
        child = parent.children.get(name)
        if child is not None and child.dirty:
            return child
        node = self._tree.bind(parent, name, st)
        if child is None:
            volume.siblings.grew(parent)
        volume.observe(node, st, asked_s)
        if node.is_dir:
            volume.watch(node, join(self._tree.directory_path(parent), name))
        return node

    def reserve(self, parent: Node, name: bytes) -> bytes:
        """The store path of a name that is about to change; the checks that hold for every change."""
        if self._volume.policy.read_only:
            raise StoreError("the volume is mounted read-only", errno=errno.EROFS)
        if parent.number == ROOT and name == RESERVED:
            raise NotPermitted(".volfs is reserved for volfs itself")
        if len(name) > 255:
            raise StoreError("the name is too long", errno=errno.ENAMETOOLONG)
        return join(self._tree.directory_path(parent), name)

    def free(self, parent: Node, name: bytes) -> bytes:
        """As reserve, for a new name: AlreadyExists if a pending file has it."""
        path = self.reserve(parent, name)
        child = parent.children.get(name)
        if child is not None and child.pending:
            raise AlreadyExists("the name is taken")
        return path

    def found(self, parent: Node, name: bytes, st: Stat, before: Node | None) -> Node | None:
        """The node of what we just made, if somebody found it before we heard that it was made.

        `before`: who had the name until then; an object of the same identity that it
        led to is gone. A file that was found may have been written, and so be another object by now.
        """
        child = parent.children.get(name)
        if child is None or child is before:
            return None
        return child if child.identity == st.identity or (child.is_file and st.is_file) else None

    def made(self, parent: Node, name: bytes, st: Stat, before: Node | None) -> Node:
        """We just made this name in the store; `before` as in `found`."""
        node = self.found(parent, name, st, before)
        self._volume.changed(parent)
        if node is not None:
            return node
        node = self._tree.bind_new(parent, name, st)
        node.checked_s = trio.current_time()
        if node.is_dir:
            self._volume.watch(node, join(self._tree.directory_path(parent), name))
        return node

    async def mkdir(self, parent: Node, name: bytes, mode: int, owner: Owner) -> Node:
        async with self._volume.structure.shared():
            path, before = self.free(parent, name), parent.children.get(name)
            return self.made(parent, name, await self._store.mkdir(path, mode, owner), before)

    async def mknod(self, parent: Node, name: bytes, mode: int, rdev: int, owner: Owner) -> Node:
        async with self._volume.structure.shared():
            path, before = self.free(parent, name), parent.children.get(name)
            return self.made(parent, name, await self._store.mknod(path, mode, rdev, owner), before)

    async def symlink(self, parent: Node, name: bytes, target: bytes, owner: Owner) -> Node:
        async with self._volume.structure.shared():
            path, before = self.free(parent, name), parent.children.get(name)
            return self.made(parent, name, await self._store.symlink(path, target, owner), before)

    async def link(self, node: Node, parent: Node, name: bytes) -> Node:
        """A second name. What is staged is committed first: the link must be of the same object (W11)."""
        volume = self._volume
        new = self.free(parent, name)
        if node.file is not None and node.file.staged is not None:
            await node.file.commit(durable=False)
        async with volume.structure.shared():
            path = self._tree.path(node)
            if path is None:
                raise NotFound("the file has no name any more")
            st = await self._store.link(path, new)
            volume.changed(parent)
            self._tree.bind(parent, name, st)
            volume.settle(node, st)
            return node

    async def unlink(self, parent: Node, name: bytes) -> None:
        path = self.reserve(parent, name)
        node = parent.children.get(name)
        if node is None:
            node = await self.find(parent, name)
        if node.is_dir:
            raise StoreError("it is a directory", errno=errno.EISDIR)
        async with AsyncExitStack() as stack:
            await self._hold(stack, losing=node)
            await stack.enter_async_context(self._volume.structure.shared())
            path = self.reserve(parent, name)
            if node.file is not None:
                await node.file.pin()
            try:
                await self._store.unlink(path)
                crash.point("unlink.done")
            except NotFound:
                if not node.dirty:
                    self._volume.lost_name(parent, name)
                    raise
            self.gone(parent, name)

    def gone(self, parent: Node, name: bytes) -> None:
        """We took this name away."""
        self._volume.changed(parent)
        node = parent.children.get(name)
        if node is None:
            return
        if node.pending:
            parent.touched_ns = self._volume.now_ns()
        self._tree.unbind(parent, name)
        node.home = None
        if node.names:
            self._volume.outdate(node)  # it has a link less, and so another ctime
        self._volume.unnamed(node)

    async def rmdir(self, parent: Node, name: bytes) -> None:
        self.reserve(parent, name)
        node = await self.find(parent, name)
        if not node.is_dir:
            raise StoreError("it is not a directory", errno=errno.ENOTDIR)
        async with self._volume.structure.alone():
            path = self.reserve(parent, name)
            if any(child.dirty for child in node.children.values()):
                raise StoreError("the directory is not empty", errno=errno.ENOTEMPTY)
            await self._store.rmdir(path)
            for child in list(node.children):
                self._tree.unbind(node, child)
            self.gone(parent, name)

    async def _hold(self, stack: AsyncExitStack, *nodes: Node, losing: Node | None) -> None:
        """The locks of those that have content, in the order that avoids deadlock.

        `losing` is about to lose one of its names. If it has more in the store, of which
        this mount may know nothing, what is staged belongs there: that is a commit point.
        """
        files = {node.number: node.file for node in (*nodes, losing) if node and node.file}
        while True:
            for number in sorted(files):
                await stack.enter_async_context(files[number].lock)
            file = losing.file if losing is not None else None
            if losing is None or file is None or not file.owed or not await self._has_more(losing):
                return
            await stack.aclose()
            await file.commit(durable=False)

    async def _has_more(self, node: Node) -> bool:
        """Whether a file whose bytes are staged has names besides its first one, as of now."""
        path = self._tree.path(node)
        if node.pending or path is None:
            return False
        try:
            st = await self._store.stat(path)
        except NotFound:
            return False
        return st.nlink > 1 and st.identity == node.identity

    # -- rename ----------------------------------------------------------------

    async def rename(self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, flags: int) -> None:
        """renameat2 between two names of the volume, with the meaning that it has on a local disk."""
        if flags & ~(RENAME_NOREPLACE | RENAME_EXCHANGE) or flags == RENAME_NOREPLACE | RENAME_EXCHANGE:
            raise StoreError("unknown rename flags", errno=errno.EINVAL)
        self.reserve(parent, name)
        self.reserve(new_parent, new_name)
        node = await self.find(parent, name)
        try:
            target: Node | None = await self.find(new_parent, new_name)
        except NotFound:
            target = None
        if target is node and not flags:
            return  # two names of one file: POSIX says that nothing happens
        if flags & RENAME_EXCHANGE:
            await self._exchange(parent, name, new_parent, new_name, node, target)
            return
        if target is not None:
            self._may_replace(node, target, flags)
            if node.dirty and node.file is not None:
                # A crash must find the old file or the new one, and not what the new one was made from (an
                # empty file that took its name, say): a commit point, as on ext4.
                await node.file.commit(durable=True)
        if node.is_dir:
            async with self._volume.structure.alone():
                await self._move(parent, name, new_parent, new_name, node, target, flags)
            return
        async with AsyncExitStack() as stack:
            await self._hold(stack, node, losing=target)
            await stack.enter_async_context(self._volume.structure.shared())
            await self._move(parent, name, new_parent, new_name, node, target, flags)

    def _may_replace(self, node: Node, target: Node, flags: int) -> None:
        if flags & RENAME_NOREPLACE:
            raise AlreadyExists("the name is taken")
        if target.is_dir:
            if not node.is_dir:
                raise StoreError("the new name is a directory", errno=errno.EISDIR)
            if any(child.dirty for child in target.children.values()):
                raise StoreError("the directory is not empty", errno=errno.ENOTEMPTY)
        elif node.is_dir:
            raise StoreError("the new name is not a directory", errno=errno.ENOTDIR)

    async def _move(
        self,
        parent: Node,
        name: bytes,
        new_parent: Node,
        new_name: bytes,
        node: Node,
        target: Node | None,
        flags: int,
    ) -> None:
        old, new = self.reserve(parent, name), self.reserve(new_parent, new_name)
        if target is not None and target.file is not None:
            await target.file.pin()
        before, after = await self._in_store(node, old), None
        rename = Renaming(old, new, node.identity or b"")
        has_rows = node.is_dir or node.dirty or (target is not None and target.dirty)
        if before is not None:
            with self._volume.journal.renaming(rename, has_rows) as has_done:
                crash.point("rename.noted")
                await self._store.rename(old, new, flags)
                has_done()
                crash.point("rename.moved")
                after = await self._stat_of_ours(new)
                if node.dirty:
                    self._rebase(node, before, after)
        self._moved(parent, name, new_parent, new_name, node, target)
        if after is not None and after.identity == node.identity:
            self._volume.settle(node, after)
        if node.is_dir:
            for child in list(target.children) if target is not None else ():
                assert target is not None
                self._tree.unbind(target, child)
        elif node.dirty:
            assert node.file is not None and node.file.staged is not None
            self._volume.journal.move(node.file.staged.name, self._tree.path(node) or new)

    async def _stat_of_ours(self, path: bytes) -> Stat | None:
        """What our change made of a file. It is done: that nobody says what it made must not fail it."""
        try:
            return await self._store.stat(path)
        except StoreError as error:
            log.warning("no attributes after a rename", path=path, error=str(error))
            return None

    async def _in_store(self, node: Node, path: bytes) -> Stat | None:
        """What a rename has to move in the store: None if only this mount has the file."""
        if node.pending:
            return None
        if not node.dirty:
            return node.stat
        try:
            return await self._store.stat(path)
        except NotFound:
            return None  # others removed it; our bytes take the new name when they are committed

    def _moved(
        self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, node: Node, target: Node | None
    ) -> None:
        if new_parent.children.get(new_name) is target:  # else somebody has seen already what we did
            self.gone(new_parent, new_name)
        self._tree.move(node, parent, name, new_parent, new_name)
        for directory in (parent, new_parent):
            self._volume.changed(directory)
            if node.pending:
                directory.touched_ns = self._volume.now_ns()

    def _rebase(self, node: Node, before: Stat, after: Stat | None) -> None:
        """Our rename gave the file that a staged one is made from new times: that is no conflict."""
        file = node.file
        assert file is not None and file.staged is not None
        base = file.base
        if base is None or before.version != base:
            return
        if after is None:  # what the rename made of it is not known, but that it changed no content
            file.staged.attempts.append(lambda st: self._store.is_moved(st, base))
        elif after.identity == before.identity:
            file.base = after.version
            self._volume.journal.rebase(file.staged.name, after.version)

    async def _exchange(
        self, parent: Node, name: bytes, new_parent: Node, new_name: bytes, node: Node, target: Node | None
    ) -> None:
        if target is None:
            raise NotFound("nothing to exchange with")
        for each in (node, target):
            if each.file is not None:
                await each.file.commit(durable=False)
        async with self._volume.structure.alone():
            old, new = self.reserve(parent, name), self.reserve(new_parent, new_name)
            rename = Renaming(old, new, node.identity or b"", exchange=True)
            with self._volume.journal.renaming(rename, node.is_dir or target.is_dir) as has_done:
                await self._store.rename(old, new, RENAME_EXCHANGE)
                has_done()
                crash.point("rename.exchanged")
            self._tree.exchange(node, parent, name, target, new_parent, new_name)
            self._volume.changed(parent)
            self._volume.changed(new_parent)
            for moved, path in ((node, new), (target, old)):
                st = await self._stat_of_ours(path)
                if st is not None:
                    self._volume.settle(moved, st)
