"""What the kernel does between a program and the daemon: paths, locks, lookup counts, second tries.

Each call of a program is made as Linux makes it over FUSE, with nothing cached: every name is looked up, each
lookup is forgotten in the end, a change of a name holds its directories, a change of content its file, and a
call that meets ESTALE is made once more. Errors are `OSError`, as programs see them.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import trio

from tests.simulation.host import Host
from tests.simulation.life import pause
from volfs.errors import VolfsError
from volfs.fs.vfs import Caller, Entry, Vfs
from volfs.store.base import Changes

__all__ = ["Descriptor", "Kernel", "Path"]

T = TypeVar("T")

Path = tuple[str, ...]

_ROOT = 1
_MOST_BYTES = 1 << 20


@dataclass(slots=True)
class Descriptor:
    """An open file of a program."""

    handle: int
    number: int
    lookups: list[int]


@dataclass(slots=True)
class _Walk:
    """Lookups of one call, to be forgotten at its end."""

    caller: Caller
    lookups: list[int] = field(default_factory=list)


def _refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Kernel:
    """See the module. One a life of a host."""

    def __init__(self, host: Host) -> None:
        self._vfs: Vfs = host.vfs
        self._creating = host.creating
        self._directories: defaultdict[int, trio.Lock] = defaultdict(trio.Lock)
        self._files: defaultdict[int, trio.Lock] = defaultdict(trio.Lock)
        self._renames = trio.Lock()
        self._threads = itertools.count(1)

    # -- the frame of a call -----------------------------------------------------

    async def _call(self, function: Callable[[_Walk], Awaitable[T]]) -> T:
        """One system call by path: lookups, second try, errno."""
        caller = Caller(0, 0, next(self._threads))
        for last in (False, True):
            walk = _Walk(caller)
            try:
                return await function(walk)
            except VolfsError as error:
                if error.errno != errno.ESTALE or last:
                    raise OSError(error.errno, str(error)) from error
            finally:
                self._creating.pop(caller.thread, None)
                self._forget(walk.lookups)
        raise AssertionError

    def _forget(self, lookups: list[int]) -> None:
        self._vfs.forget([(number, 1) for number in lookups])
        lookups.clear()

    async def _by_handle(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except VolfsError as error:
            raise OSError(error.errno, str(error)) from error

    async def _lookup(self, walk: _Walk, parent: int, name: str) -> Entry:
        entry = await self._vfs.lookup(parent, name.encode(), walk.caller)
        walk.lookups.append(entry.number)
        return entry

    async def _find(self, walk: _Walk, parent: int, name: str) -> Entry | None:
        try:
            return await self._lookup(walk, parent, name)
        except VolfsError as error:
            if error.errno != errno.ENOENT:
                raise
            return None

    async def _parent(self, walk: _Walk, path: Path) -> int:
        number = _ROOT
        for name in path[:-1]:
            entry = await self._lookup(walk, number, name)
            if not entry.stat.is_dir:
                raise _refuse(errno.ENOTDIR)
            number = entry.number
        await pause()
        return number

    @asynccontextmanager
    async def _held(self, locks: defaultdict[int, trio.Lock], *numbers: int) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for number in sorted(set(numbers)):
                await stack.enter_async_context(locks[number])
            yield

    # -- files -------------------------------------------------------------------

    async def open(self, path: Path, flags: int) -> Descriptor:
        """open(2)."""

        async def call(walk: _Walk) -> Descriptor:
            parent = await self._parent(walk, path)
            if flags & os.O_CREAT:
                async with self._held(self._directories, parent):
                    self._creating[walk.caller.thread] = path[-1].encode()
                    entry = await self._find(walk, parent, path[-1])
                    if entry is None:
                        entry, opened = await self._vfs.create(
                            parent, path[-1].encode(), 0o644, flags, walk.caller
                        )
                        walk.lookups.append(entry.number)
                        return self._opened(opened.handle, entry.number, walk)
                if flags & os.O_EXCL:
                    raise _refuse(errno.EEXIST)
            else:
                entry = await self._lookup(walk, parent, path[-1])
            if entry.stat.is_dir:
                raise _refuse(errno.EISDIR)
            await pause()
            opened = await self._vfs.open(entry.number, flags & ~(os.O_CREAT | os.O_EXCL), walk.caller)
            return self._opened(opened.handle, entry.number, walk)

        return await self._call(call)

    def _opened(self, handle: int, number: int, walk: _Walk) -> Descriptor:
        descriptor = Descriptor(handle, number, list(walk.lookups))
        walk.lookups.clear()  # its dentry and those above stay while it is open
        return descriptor

    async def read(self, descriptor: Descriptor) -> bytes:
        """All of it, in one request."""
        return bytes(await self._by_handle(self._vfs.read(descriptor.handle, 0, _MOST_BYTES)))

    async def append(self, descriptor: Descriptor, data: bytes) -> None:
        """write(2) with O_APPEND: the kernel passes the end as it knows it."""
        async with self._held(self._files, descriptor.number):
            entry = await self._by_handle(self._vfs.getattr(descriptor.number))
            await self._by_handle(self._vfs.write(descriptor.handle, entry.stat.size, data))

    async def empty(self, descriptor: Descriptor) -> None:
        """ftruncate(2) to nothing."""
        async with self._held(self._files, descriptor.number):
            await self._by_handle(self._vfs.setattr(descriptor.number, Changes(), 0))

    async def fsync(self, descriptor: Descriptor) -> None:
        await self._by_handle(self._vfs.fsync(descriptor.handle))

    async def close(self, descriptor: Descriptor) -> bool:
        """close(2): flush tells, release does not. Whether it was the last one that may write (W3)."""
        last = self._vfs.files.get(descriptor.handle).file.writers == 1
        try:
            await self._by_handle(self._vfs.flush(descriptor.handle))
        finally:
            await pause()
            await self._by_handle(self._vfs.release(descriptor.handle))
            self._forget(descriptor.lookups)
        return last

    async def truncate(self, path: Path) -> None:
        """truncate(2) to nothing."""

        async def call(walk: _Walk) -> None:
            parent = await self._parent(walk, path)
            entry = await self._lookup(walk, parent, path[-1])
            if entry.stat.is_dir:
                raise _refuse(errno.EISDIR)
            async with self._held(self._files, entry.number):
                await self._vfs.setattr(entry.number, Changes(), 0)

        await self._call(call)

    # -- names -------------------------------------------------------------------

    async def unlink(self, path: Path) -> None:
        async def call(walk: _Walk) -> None:
            parent = await self._parent(walk, path)
            async with self._held(self._directories, parent):
                entry = await self._lookup(walk, parent, path[-1])
                if entry.stat.is_dir:
                    raise _refuse(errno.EISDIR)
                async with self._held(self._files, entry.number):
                    await self._vfs.unlink(parent, path[-1].encode())

        await self._call(call)

    async def mkdir(self, path: Path) -> None:
        async def call(walk: _Walk) -> None:
            parent = await self._parent(walk, path)
            async with self._held(self._directories, parent):
                if await self._find(walk, parent, path[-1]) is not None:
                    raise _refuse(errno.EEXIST)
                entry = await self._vfs.mkdir(parent, path[-1].encode(), 0o755, walk.caller)
                walk.lookups.append(entry.number)

        await self._call(call)

    async def rmdir(self, path: Path) -> None:
        async def call(walk: _Walk) -> None:
            parent = await self._parent(walk, path)
            async with self._held(self._directories, parent):
                entry = await self._lookup(walk, parent, path[-1])
                if not entry.stat.is_dir:
                    raise _refuse(errno.ENOTDIR)
                async with self._held(self._directories, entry.number):
                    await self._vfs.rmdir(parent, path[-1].encode())

        await self._call(call)

    async def rename(self, old: Path, new: Path) -> None:
        """rename(2)."""

        async def call(walk: _Walk) -> None:
            parent = await self._parent(walk, old)
            new_parent = await self._parent(walk, new)
            async with AsyncExitStack() as stack:
                if parent != new_parent:
                    await stack.enter_async_context(self._renames)
                await stack.enter_async_context(self._held(self._directories, parent, new_parent))
                source = await self._lookup(walk, parent, old[-1])
                if new[: len(old)] == old and new != old:
                    raise _refuse(errno.EINVAL)
                target = await self._find(walk, new_parent, new[-1])
                if old[: len(new)] == new and new != old:
                    raise _refuse(errno.ENOTEMPTY)
                if target is not None:
                    if target.number == source.number:
                        return
                    if target.stat.is_dir != source.stat.is_dir:
                        raise _refuse(errno.EISDIR if target.stat.is_dir else errno.ENOTDIR)
                numbers = [source.number, *([target.number] if target is not None else [])]
                await stack.enter_async_context(self._held(self._files, *numbers))
                await self._vfs.rename(parent, old[-1].encode(), new_parent, new[-1].encode(), 0)

        await self._call(call)

    async def list(self, path: Path) -> list[str]:
        """The names in a directory, with their attributes, as `ls -l` asks."""

        async def call(walk: _Walk) -> list[str]:
            number = _ROOT
            if path:
                entry = await self._lookup(walk, await self._parent(walk, path), path[-1])
                number = entry.number
                if not entry.stat.is_dir:
                    raise _refuse(errno.ENOTDIR)
            names: list[str] = []

            def emit(name: bytes, entry: Entry, after: int) -> bool:
                names.append(name.decode())
                walk.lookups.append(entry.number)
                return True

            handle = await self._vfs.opendir(number)
            try:
                await self._vfs.readdir(handle, 0, emit)
            finally:
                await self._vfs.releasedir(handle)
            return names

        return await self._call(call)
