"""Open files: handles, and what open, create, read, write, flush, fsync and release mean.

It decides when close commits (W3, W5) and which pages the kernel may keep. What
content is, and how it is committed, is `fs.file`.

*Concurrency:* a handle belongs to the kernel; its calls may run side by side.
A node's `handles` count is raised before the first await of an open, so that
nothing lets go of its content meanwhile.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import structlog
import trio

from volfs import crash
from volfs.commit.staging import StagedFile
from volfs.core.schedule import commit_at_flush, due_while_open
from volfs.core.versions import ABSENT
from volfs.errors import AlreadyExists, NotFound, StoreError, VersionChanged, VolfsError
from volfs.fs.creating import Creations, Free, take_name
from volfs.fs.descriptors import refuse_if_scarce
from volfs.fs.file import File
from volfs.fs.handles import Handle, Opened
from volfs.fs.names import Names
from volfs.fs.tree import Node
from volfs.fs.volume import Volume
from volfs.store.base import Owner, Stat

__all__ = ["Files"]

log = structlog.get_logger(__name__)

T = TypeVar("T")


class Files:
    """The table of handles."""

    def __init__(self, volume: Volume, names: Names, creations: Creations) -> None:
        self._volume = volume
        self._names = names
        self._creations = creations
        self._handles: dict[int, Handle] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._handles)

    # -- opening ---------------------------------------------------------------

    async def open(self, node: Node, flags: int, thread: int) -> Opened:
        """Open a known file. VersionChanged makes the kernel look the path up again and come back, once."""
        volume, second = self._volume, self._volume.second_tries.take(thread, node)
        if not node.is_file:
            raise StoreError("not a regular file", errno=errno.EISDIR if node.is_dir else errno.ENXIO)
        writes = flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC
        if writes and self._volume.policy.read_only:
            raise StoreError("the volume is mounted read-only", errno=errno.EROFS)
        self._may_open()
        names = list(node.names)
        file = self._hold(node)
        try:
            if not writes:
                volume.siblings.opened(node)
            direct = bool(flags & os.O_DIRECT)
            await self._revalidate(node, file, force=direct, second=second, bring=not writes)
            if node.stale_pages:
                # The reply to an open carries no size: the kernel must have dropped the one that it knows.
                await self._volume.notifier.told()
            emptied = flags & os.O_TRUNC and file.size > 0
            if flags & os.O_TRUNC:
                await self._with_room(file, 0, lambda: self._truncate(file, 0, names, replace=True))
        except BaseException as error:
            if isinstance(error, VersionChanged):
                self._volume.second_tries.refuse(thread, names)
            self._let_go(node)
            raise
        return self._opened(node, file, flags, emptied=bool(emptied))

    async def _revalidate(
        self, node: Node, file: File, *, force: bool, second: bool, bring: bool = False
    ) -> None:
        """Promise R1: the open sees every commit that ended before it. `bring`: it is about to be read.

        On the kernel's `second` try what the lookup found is right, even if it was replaced again by now.
        """
        volume = self._volume
        if file.staged is not None:
            return
        if node.stale_names and not second:
            # The kernel may have come by a name that is gone. Once it knows, it shall look again.
            node.stale_names = False
            await volume.notifier.told()
            raise VersionChanged("a name of the file was taken away")
        if file.reader is not None:
            if node.names:
                await volume.look(node, force=force)
            if not node.names and not second:
                raise VersionChanged("the file was removed or replaced")
            return
        began_s = trio.current_time()
        if bring and not force and not second and not (file.complete() and volume.fresh(node)):
            await volume.siblings.settle(node)
        asked = second or (not force and (volume.fresh(node) or node.checked_s >= began_s))
        if asked and file.complete() and (node.names or second):
            return
        path = volume.tree.path(node)
        if path is None:
            raise VersionChanged("the file was removed or replaced")
        epoch = node.epoch

        async def pin() -> Stat:
            return await file.open_reader(path, adopt=second and not file.opened)

        try:
            # Without a reader only a file that the cache has all of can be read.
            st = await (volume.ask(node, pin) if file.complete() else pin())
        except (NotFound, VersionChanged) as error:
            if node.epoch == epoch and node.names and volume.tree.path(node) == path:
                volume.lost(node)
            raise VersionChanged("the file was removed or replaced") from error
        if st is not None and node.epoch == epoch:
            volume.observe(node, st)

    @asynccontextmanager
    async def held(self, node: Node) -> AsyncIterator[File]:
        """The file as an open finds it now (R1), without a handle; without names if that would fail."""
        file = self._hold(node)
        try:
            self._volume.siblings.opened(node)
            if file.complete():
                await self._volume.look(node)
            if node.stale_names or not file.complete():
                await self._revalidate(node, file, force=False, second=False, bring=True)
            yield file
        finally:
            self._let_go(node)

    async def _with_room(self, file: File | None, size: int, action: Callable[[], Awaitable[T]]) -> T:
        """Do what needs so many bytes of the disk of the staged files. It may be done several times."""
        room = self._volume.room
        if room is None:
            return await action()
        if file is not None and file.staged is None:
            size += file.size  # what is staged first is a copy of what there is
        return await room.with_room(action, size, lambda: file.staged if file is not None else None)

    async def _truncate(
        self, file: File, size: int, names: list[tuple[Node, bytes]], *, replace: bool = False
    ) -> None:
        """Cut the file that has one of `names`: the one that was meant, and not a conflict copy."""
        while True:
            async with file.lock:
                if names and not any(name in file.node.names for name in names):
                    raise VersionChanged("the name went to another file")
                if not file.is_promised(size):
                    await file.truncate(size, replace=replace)
                    return
            await file.commit(durable=False)

    async def create(
        self, parent: Node, name: bytes, mode: int, flags: int, owner: Owner, thread: int
    ) -> tuple[Node, Opened]:
        """Open a file that the kernel believes not to exist. The name may be taken by now."""
        return await self._with_room(None, 0, lambda: self._create(parent, name, mode, flags, owner, thread))

    async def _create(
        self, parent: Node, name: bytes, mode: int, flags: int, owner: Owner, thread: int
    ) -> tuple[Node, Opened]:
        volume = self._volume
        self._may_open()
        path = self._names.reserve(parent, name)
        free = self._creations.free(parent, name, thread)
        if free is None:
            try:
                node = await self._names.find(parent, name)
            except NotFound:
                pass
            else:
                if flags & os.O_EXCL:
                    raise AlreadyExists("the name is taken")
                return node, await self.open(node, flags, thread)
        assert volume.staging is not None
        async with volume.structure.shared():
            path = self._names.reserve(parent, name)
            if free is not None and name in parent.children:
                raise VersionChanged("the name was taken meanwhile")
            staged, before = volume.staging.create(), parent.children.get(name)
            try:
                crash.point("create.staged")
                staged.own(mode, owner, parent.stat)
                # In background mode the name is decided at the commit (W10). Who appends, or opens what a
                # listing says is free, and does not empty it, means to go on with what is there: bytes of
                # others that are there after all are not replaced.
                goes_on = bool(flags & os.O_APPEND) or free is Free.LISTED
                kept = goes_on and not flags & os.O_TRUNC
                base = ABSENT if flags & os.O_EXCL or kept else None
                volume.journal.add(staged.name, path, base, 0, staged.stat().number)
                placeholder = await take_name(volume, parent, path, mode, flags, owner)
                found = self._names.found(parent, name, placeholder, before) if placeholder else None
                if placeholder is not None and found is None:
                    volume.journal.rebase(staged.name, placeholder.version, placeholder.identity)
            except BaseException:
                staged.discard()
                volume.journal.remove(staged.name)
                raise
            # no await from here
            if found is None:
                node = self._made(parent, name, staged, placeholder, before)
                file = self._hold(node)
                file.begin(staged, placeholder.version if placeholder is not None else base)
                file.wrote(0)
                return node, self._opened(node, file, flags)
            staged.discard()
            volume.journal.remove(staged.name)
        return found, await self.open(found, flags, thread)

    def _made(
        self, parent: Node, name: bytes, staged: StagedFile, placeholder: Stat | None, before: Node | None
    ) -> Node:
        volume = self._volume
        if placeholder is not None:
            node = self._names.made(parent, name, placeholder, before)
        else:
            node = volume.tree.create(parent, name, staged.stat())
            volume.siblings.grew(parent)
            parent.touched_ns = volume.now_ns()
        self._creations.made(parent, name)
        return node

    def _may_open(self) -> None:
        """Once the daemon was told to end, it finishes what it has; and so while descriptors are scarce."""
        refuse_if_scarce()
        if self._volume.ending:
            raise StoreError("the mount is being taken away", errno=errno.ESHUTDOWN)

    def _hold(self, node: Node) -> File:
        node.handles += 1
        if node.file is None:
            node.file = File(self._volume, node)
        return node.file

    def _let_go(self, node: Node) -> None:
        node.handles -= 1
        self._volume.abandon(node)
        self._volume.tree.drop(node)

    def _opened(self, node: Node, file: File, flags: int, *, emptied: bool = False) -> Opened:
        self._last += 1
        handle = Handle(self._last, node, file, flags, emptied=emptied)
        self._handles[handle.number] = handle
        file.opened += 1
        file.writers += handle.writes
        keep, node.stale_pages = not node.stale_pages, False
        return Opened(handle.number, keep)

    def get(self, number: int) -> Handle:
        try:
            return self._handles[number]
        except KeyError:
            raise StoreError("no such handle", errno=errno.EBADF) from None

    # -- content ---------------------------------------------------------------

    async def read(self, number: int, offset: int, size: int) -> bytes | bytearray | memoryview:
        handle = self.get(number)
        return await handle.file.read(offset, size, handle.file.cursor)

    async def write(self, number: int, offset: int, data: bytes | memoryview) -> int:
        handle = self.get(number)
        await self._with_room(handle.file, len(data), lambda: self._write(handle, offset, data))
        handle.wrote, handle.emptied = True, False
        if handle.flushed:
            handle.shared = True
        return len(data)

    async def _write(self, handle: Handle, offset: int, data: bytes | memoryview) -> None:
        file = handle.file
        if handle.flags & os.O_APPEND:
            async with file.lock:
                if await file.write(None, data) != offset:
                    # The kernel took an older size for the end: its page holds our bytes at the wrong place.
                    self._volume.notifier.content(handle.node.number)
            return
        while True:
            async with file.lock:
                if not file.is_promised(offset):
                    await file.write(offset, data)
                    return
            await file.commit(durable=False)

    async def truncate(self, node: Node, size: int) -> None:
        """truncate(2) and ftruncate(2); a file that nobody writes is committed at once."""
        if self._volume.policy.read_only:
            raise StoreError("the volume is mounted read-only", errno=errno.EROFS)
        file = self._hold(node)
        names = list(node.names)
        try:
            if file.staged is None and node.names:
                await self._revalidate(node, file, force=False, second=False)
            await self._with_room(file, 0, lambda: self._truncate(file, size, names))
            if not file.writers and file.owed:
                await self._settle(file, durable=False)
        finally:
            self._let_go(node)

    # -- ends ------------------------------------------------------------------

    async def flush(self, number: int) -> None:
        """One of the descriptors was closed; whether it was the last, FUSE does not tell."""
        handle = self.get(number)
        file = handle.file
        handle.flushed = handle.wrote
        if not handle.writes or not file.owed or file.writers > 1:
            return
        if handle.emptied:
            handle.emptied = False
            # A shell opens, duplicates and closes before it writes: publishing the emptied file now would
            # show others an empty one. The next flush, or the release, commits.
            return
        if not commit_at_flush(
            trio.current_time(),
            shared=handle.shared,
            size=file.size,
            committed_s=file.committed_s,
            interval_s=self._volume.policy.commit_interval_s,
        ):
            return
        await self._settle(file, durable=False)

    async def _settle(self, file: File, *, durable: bool) -> None:
        """Commit now, or acknowledge and commit soon, as the volume's policy says."""
        # A file of which no name is known cannot be found again after a crash: it is not put off.
        known = self._volume.tree.home(file.node) is not None
        if known and not self._volume.policy.commit_at_close and not durable:
            file.acknowledge()
            self._volume.queue.add(file.node.number)
            return
        try:
            await file.commit(durable=durable or self._volume.policy.durable_close)
        except VolfsError as error:
            # The application is done with it, so it is whole: from here on a crash must not lose it either.
            with suppress(StoreError):  # of the journal: what the application hears is why the commit failed
                file.acknowledge()
            self._volume.queue.failed_once(file.node.number, error)
            raise

    async def fsync(self, number: int) -> None:
        handle = self.get(number)
        await self._settle(handle.file, durable=True)

    async def release(self, number: int) -> None:
        """The last descriptor is gone, and every mapping: what came after the last flush is committed now."""
        handle = self._handles.pop(number)
        node, file = handle.node, handle.file
        file.opened -= 1
        file.writers -= handle.writes
        try:
            if file.owed and not file.writers and node.number not in self._volume.queue:
                await self._settle(file, durable=False)
        except VolfsError as error:
            log.warning("commit at release failed, it will be tried again", error=str(error))
        finally:
            self._let_go(node)

    # -- the queue's and the clock's side ----------------------------------------

    async def commit_number(self, number: int) -> None:
        """An attempt of the queue."""
        node = self._volume.tree.by_number.get(number)
        if node is None or node.file is None:
            return
        await node.file.commit(durable=False, if_owed=True)

    def commit_quiet(self) -> None:
        """Queue the files that stay open and are due (W3)."""
        now = trio.current_time()
        for node in {handle.node.number: handle.node for handle in self._handles.values()}.values():
            file = node.file
            if file is None or not file.owed or file.activity is None:
                continue
            if due_while_open(now, file.activity, self._volume.policy.commit_interval_s):
                self._volume.queue.add(node.number)

    def commit_appends(self) -> None:
        """The mount ends: queue open files that only grew. Others wait for their close (W6)."""
        for node in self.open_nodes():
            if node.file is not None and node.file.is_append:
                self._volume.queue.add(node.number)

    def open_nodes(self) -> list[Node]:
        """Every node with an open handle, once."""
        return list({handle.node.number: handle.node for handle in self._handles.values()}.values())
