"""Open files and open directories of a directory store, and small files read whole.

*Concurrency:* a read that the page cache can answer is made in the trio thread
(RWF_NOWAIT says at once whether it can), every other one in a worker thread. A
descriptor in use by a thread stays open until the call has returned, whoever
closes the reader or leaves the call.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import itertools
import os
import stat as _stat
from collections.abc import Callable
from typing import Protocol, TypeVar

import trio

from volfs.core.versions import Version
from volfs.errors import StoreError, VersionChanged, from_os_error
from volfs.store import beneath
from volfs.store.attributes import apply_changes, to_stat, version_of
from volfs.store.base import Changes, Filled, Observer, Stat
from volfs.store.copies import copy_over
from volfs.store.copying import clone_range
from volfs.store.streams import WORTH_BYTES, StreamLimit, Streams, bypass_cache, fill, open_stream
from volfs.telemetry import get_logger

__all__ = ["Caller", "FileDirectoryReader", "FileReader", "fetch", "open_file"]

log = get_logger(__name__)

T = TypeVar("T")

#: The largest request of the kernel; every read in the trio thread lands here and is replied from here.
_SCRATCH = memoryview(bytearray(1 << 20))

#: A copy of so little costs less than the switch to a thread.
_INLINE_COPY = 64 << 10

#: Attributes of a remote listing are fetched by this many tasks at once.
_STATS_AT_ONCE = 16


def open_file(root: int, path: bytes) -> tuple[int, os.stat_result]:
    """A descriptor of the regular file beneath `root`, and its attributes. Blocking."""
    fd = _open(root, path)
    try:
        st = os.fstat(fd)
        _require_file(st, path)
    except BaseException:
        os.close(fd)
        raise
    return fd, st


def _open(root: int, path: bytes) -> int:
    # O_NONBLOCK: the name may have become a FIFO, which must not hang the open.
    return beneath.open_beneath(root, path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)


def _require_file(st: os.stat_result, path: bytes) -> None:
    if not _stat.S_ISREG(st.st_mode):
        raise OSError(errno.ESTALE, "not a regular file any more", os.fsdecode(path))


def fetch(
    root: int, path: bytes, most_bytes: int, known: Stat | None, past_cache: bool
) -> tuple[Stat, bytes | None]:
    """As `Store.fetch`: all that a small file needs, so that it costs one change of threads. Blocking.

    `past_cache`: not by the page cache of the store's client, where that can be done: nobody else
    is there for the bytes, and a copy of 150 KiB costs as much as two system calls. Each call that
    gives the interpreter away and gets it back costs about as much again.
    """
    fd = _open(root, path)
    try:
        if known is not None and known.is_file and known.size <= most_bytes:
            data = _read_whole(fd, known.size, past_cache)
            after = os.fstat(fd)
            if version_of(after) == known.version and len(data) == known.size:
                return to_stat(after), data
        before = os.fstat(fd)
        _require_file(before, path)
        st = to_stat(before)
        if st.size > most_bytes:
            return st, None
        data = _read_whole(fd, st.size, past_cache)
        if len(data) != st.size or version_of(os.fstat(fd)) != st.version:
            raise VersionChanged("the file changed while it was read")
        return st, data
    finally:
        os.close(fd)


#: Of those functions that never wait: called so, they keep the interpreter.
_fcntl = ctypes.PyDLL(None, use_errno=True).fcntl


def _read_whole(fd: int, size: int, past_cache: bool) -> bytes:
    # After the open, so that a FUSE server is not asked what it thinks of it.
    if past_cache and size and _fcntl(fd, fcntl.F_SETFL, os.O_DIRECT) == 0:
        try:
            return _pread(fd, size, 0)
        except OSError as error:
            if error.errno != errno.EINVAL:  # which says that memory or size do not suit a disk below
                raise
            _fcntl(fd, fcntl.F_SETFL, 0)
    return _pread(fd, size, 0)


class Caller(Protocol):
    """What an open file needs of its store."""

    local: bool
    read_bytes: int
    streams: StreamLimit

    async def call(
        self,
        function: Callable[..., T],
        *args: object,
        thread: bool = False,
        drop: Callable[[T], None] = ...,
        ended: Callable[[], None] = ...,
    ) -> T: ...

    def let_go(self, fd: int) -> None: ...


class FileReader:
    """`store.base.Reader` over a descriptor, which it owns, and further ones where the store is remote."""

    __slots__ = ("_closing", "_direct", "_filling", "_nowait", "_store", "_streams", "_users", "fd")

    def __init__(self, store: Caller, fd: int) -> None:
        self._store = store
        self.fd = fd
        self._nowait = store.local
        self._users = 0
        self._closing = False
        self._filling = 0  # calls of `read_into` that use `fd`
        self._direct = store.local  # `bypass_cache` was called, or is not to be
        self._streams = Streams(store.streams, store.let_go)

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

    async def read_into(self, buffer: memoryview, offset: int) -> Filled:
        local = self._store.local
        if self._nowait and len(buffer) <= len(_SCRATCH) and not self._closing:
            view = self._read_cached(offset, len(buffer))
            if view is not None:
                buffer[: len(view)] = view
                self._store.read_bytes += len(view)
                return Filled(len(view), _fstat(self.fd).version, certain=local)
        size, version = await self._fill(buffer, offset)
        self._store.read_bytes += size
        return Filled(size, version, certain=local)

    async def _fill(self, buffer: memoryview, offset: int) -> tuple[int, Version]:
        """In a thread, over a descriptor that no other call uses, as far as there may be more of them."""
        self._refuse_if_closed()
        if self._store.local or not self._filling:
            return await self._fill_first(buffer, offset)
        stream = self._streams.take()
        if stream is None and len(buffer) >= WORTH_BYTES and self._streams.may_open():
            stream = await self._open_stream()
        if stream is None:
            return await self._fill_first(buffer, offset)
        try:
            self._refuse_if_closed()  # while the stream was opened
        except VersionChanged:
            self._streams.give(stream)
            self._streams.close()
            raise

        def ended() -> None:
            self._streams.give(stream)
            self._ended()

        self._users += 1
        return await self._store.call(fill, stream, buffer, offset, thread=True, ended=ended)

    async def _fill_first(self, buffer: memoryview, offset: int) -> tuple[int, Version]:
        self._refuse_if_closed()
        if not self._direct:
            self._direct = True
            bypass_cache(self.fd)

        def ended() -> None:
            self._filling -= 1
            self._ended()

        self._filling += 1
        self._users += 1
        return await self._store.call(fill, self.fd, buffer, offset, thread=True, ended=ended)

    async def _open_stream(self) -> int | None:
        """A stream for this call, if one can be opened."""
        stream = -1
        try:
            # Dropped if this task is cancelled: then nobody gives it back.
            stream = await self._use(open_stream, thread=True, drop=self._store.let_go)
        except StoreError as error:
            log.debug("no further descriptor of the file", error=str(error))
            return None
        finally:
            if stream < 0:
                self._streams.failed()
        return stream

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

    async def _use(
        self,
        function: Callable[..., T],
        *args: object,
        thread: bool = False,
        drop: Callable[[T], None] = lambda result: None,
    ) -> T:
        """Call with the descriptor, which stays open until the call ends, whoever closes or leaves."""
        self._refuse_if_closed()
        self._users += 1
        return await self._store.call(function, self.fd, *args, thread=thread, drop=drop, ended=self._ended)

    def _refuse_if_closed(self) -> None:
        if self._closing:
            raise VersionChanged("the file was closed meanwhile")

    def _ended(self) -> None:
        self._users -= 1
        self._close_if_idle()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._closing:
            self._streams.close()
            if not self._users:
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
        self._entries: os._ScandirIterator[str] | None = None

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
        if self._entries is not None:  # it has a descriptor of its own
            if self._store.local:
                self._entries.close()
            else:
                trio.lowlevel.start_thread_soon(self._entries.close, lambda outcome: None)
        self._store.let_go(self._fd)
