"""Open files and open directories of a directory store.

*Concurrency:* a read that the page cache can answer is made in the trio thread
(RWF_NOWAIT says at once whether it can), every other one in a worker thread.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import trio

from volfs.errors import VersionChanged, from_os_error
from volfs.store.attributes import apply_changes, to_stat
from volfs.store.base import Changes, Observer, Stat
from volfs.store.copies import copy_over
from volfs.store.copying import clone_range

__all__ = ["Caller", "FileDirectoryReader", "FileReader"]

T = TypeVar("T")

#: The largest request of the kernel; every read in the trio thread lands here and is replied from here.
_SCRATCH = memoryview(bytearray(1 << 20))

#: A copy of so little costs less than the switch to a thread.
_INLINE_COPY = 64 << 10

#: Attributes of a remote listing are fetched by this many tasks at once.
_STATS_AT_ONCE = 16


class Caller(Protocol):
    """What an open file needs of its store."""

    local: bool
    read_bytes: int

    async def call(
        self,
        function: Callable[..., T],
        *args: object,
        thread: bool = False,
        ended: Callable[[], None] = ...,
    ) -> T: ...

    def let_go(self, fd: int) -> None: ...


class FileReader:
    """`store.base.Reader` over a descriptor, which it owns."""

    __slots__ = ("_closing", "_nowait", "_store", "_users", "fd")

    def __init__(self, store: Caller, fd: int) -> None:
        self._store = store
        self.fd = fd
        self._nowait = store.local
        self._users = 0
        self._closing = False

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        if self._nowait and size <= len(_SCRATCH) and not self._closing:
            got = self._read_cached(offset, size)
            if got is not None:
                self._store.read_bytes += len(got)
                return got
        data = await self._use(_pread, size, offset, thread=True)
        self._store.read_bytes += len(data)
        return data

    def _read_cached(self, offset: int, size: int) -> memoryview | None:
        """The bytes if memory has them all, else None."""
        view = _SCRATCH[:size]
        try:
            n = os.preadv(self.fd, [view], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EOPNOTSUPP:
                raise from_os_error(error) from error
            self._nowait = False
            return None
        if n < size and offset + n < os.fstat(self.fd).st_size:
            return None
        return view[:n]

    async def stat(self) -> Stat:
        return await self._use(_fstat)

    async def change(self, changes: Changes) -> Stat:
        return await self._use(_change, changes)

    async def copy_to(self, target: int, size: int) -> None:
        await self._use(clone_range, target, size, thread=size > _INLINE_COPY)

    async def overwrite(self, staged: int, observe: Observer | None) -> Stat:
        return await self._use(_overwrite, staged, observe, thread=True)

    async def sync(self) -> None:
        await self._use(os.fsync, thread=True)

    async def _use(self, function: Callable[..., T], *args: object, thread: bool = False) -> T:
        """Call with the descriptor, which stays open until the call ends, whoever closes or leaves."""
        if self._closing:
            raise VersionChanged("the file was closed meanwhile")
        self._users += 1
        return await self._store.call(function, self.fd, *args, thread=thread, ended=self._ended)

    def _ended(self) -> None:
        self._users -= 1
        self._close_if_idle()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._closing and not self._users:
            self._store.let_go(self.fd)


def _pread(fd: int, size: int, offset: int) -> bytes:
    data = os.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    # A short read means the end of the file, or a signal: only a second one tells.
    pieces = [data]
    done = len(data)
    while done < size:
        data = os.pread(fd, size - done, offset + done)
        if not data:
            break
        pieces.append(data)
        done += len(data)
    return b"".join(pieces)


def _fstat(fd: int) -> Stat:
    return to_stat(os.fstat(fd))


def _change(fd: int, changes: Changes) -> Stat:
    apply_changes(fd, changes)
    return to_stat(os.fstat(fd))


def _overwrite(fd: int, staged: int, observe: Observer | None) -> Stat:
    return copy_over(staged, os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC), observe)


class FileDirectoryReader:
    """`store.base.DirectoryReader` over a descriptor, which it owns. Holds one chunk at a time."""

    def __init__(self, store: Caller, fd: int, hide: bytes | None) -> None:
        self._store = store
        self._fd = fd
        self._hide = hide
        self._entries: Iterator[os.DirEntry[str]] | None = None

    async def names(self, most: int) -> list[bytes]:
        while True:
            found, names = await self._store.call(self._scan, most)
            if names or not found:
                return names

    def _scan(self, most: int) -> tuple[int, list[bytes]]:
        if self._entries is None:
            self._entries = os.scandir(self._fd)
        names = [os.fsencode(entry.name) for entry in itertools.islice(self._entries, most)]
        return len(names), [name for name in names if name != self._hide]

    async def stats(self, names: list[bytes]) -> list[tuple[bytes, Stat]]:
        if self._store.local:
            return await self._store.call(self._stat_some, names)
        parts = [names[i::_STATS_AT_ONCE] for i in range(min(_STATS_AT_ONCE, len(names)))]
        found: dict[bytes, Stat] = {}

        async def part(some: list[bytes]) -> None:
            found.update(await self._store.call(self._stat_some, some))

        async with trio.open_nursery() as nursery:
            for some in parts:
                nursery.start_soon(part, some)
        return [(name, found[name]) for name in names if name in found]

    def _stat_some(self, names: list[bytes]) -> list[tuple[bytes, Stat]]:
        found = []
        for name in names:
            try:
                found.append((name, to_stat(os.stat(name, dir_fd=self._fd, follow_symlinks=False))))
            except FileNotFoundError:  # removed since the scan: not listed
                continue
        return found

    def close(self) -> None:
        self._store.let_go(self._fd)
