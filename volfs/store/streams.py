"""Further descriptors of an open file of a remote store, each a stream of its own.

A file server gives one open file a part of what it can: over a network one reader
needs several to be fast. It owns descriptors that it opened itself; which call
uses which is `store.reading`'s.

A stream bypasses the page cache of the store's client where that is possible
(O_DIRECT): the bytes are kept by us, twice would cost a copy and the memory. The
flag is set after the open, so that a FUSE server is not asked what it thinks of it.

*Concurrency:* `Streams` and `StreamLimit` belong to the trio thread. Functions that
run in threads (`open_stream`, `fill`) get descriptors and memory.

*Invariants:* at most `_MOST` streams of one file and `_MOST_IN_ALL` of one store. An
idle stream is closed when another file needs one and there is no more.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable
from typing import Final

from volfs.core.versions import Version
from volfs.store.attributes import Stamped, version_of

__all__ = ["StreamLimit", "Streams", "bypass_cache", "fill", "open_stream"]

#: Besides the descriptor of the open itself: 16 streams of 100 MB/s fill a network link of 10 Gbit/s.
_MOST: Final = 15

#: Of a usual limit of 1024 descriptors a small part.
_MOST_IN_ALL: Final = 128

#: A call for less takes a stream that there is: to open one costs more than to share one.
WORTH_BYTES: Final = 256 << 10

_AT_EMPTY_PATH: Final = 0x1000
_AT_STATX_FORCE_SYNC: Final = 0x2000

#: Inode, size, mtime, ctime.
_STATX_WANTED: Final = 0x100 | 0x200 | 0x40 | 0x80

_libc = ctypes.CDLL(None, use_errno=True)


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_int64), ("ns", ctypes.c_uint32), ("_spare", ctypes.c_int32))


class _Attributes(ctypes.Structure):
    """struct statx of the kernel's ABI, as far as it is of use here."""

    _fields_ = (
        ("_head", ctypes.c_uint8 * 32),
        ("st_ino", ctypes.c_uint64),
        ("st_size", ctypes.c_uint64),
        ("_blocks", ctypes.c_uint64 * 2),
        ("_times", _Time * 4),  # of access, birth, change, modification
        ("_tail", ctypes.c_uint8 * 128),
    )
    st_ino: int
    st_size: int

    @property
    def st_ctime_ns(self) -> int:
        return _nanoseconds(self._times[2])

    @property
    def st_mtime_ns(self) -> int:
        return _nanoseconds(self._times[3])


def _nanoseconds(time: _Time) -> int:
    return int(time.seconds) * 1_000_000_000 + int(time.ns)


class StreamLimit:
    """The streams of one store."""

    def __init__(self) -> None:
        self._open = 0
        self._idle: dict[Streams, None] = {}  # who has idle ones, the one that used them longest ago first

    def take(self) -> bool:
        """One more stream will be opened, if it may; `give` when it is closed, or was not to be had."""
        if self._open >= _MOST_IN_ALL:
            longest = next(iter(self._idle), None)
            if longest is None:
                return False
            longest.shed()
        self._open += 1
        return True

    def give(self) -> None:
        self._open -= 1

    def idle(self, streams: Streams, *, some: bool) -> None:
        """Whether it has idle ones now."""
        self._idle.pop(streams, None)
        if some:
            self._idle[streams] = None


class Streams:
    """The streams of one open file. `let_go` closes a descriptor."""

    __slots__ = ("_idle", "_let_go", "_limit", "_most", "_open")

    def __init__(self, limit: StreamLimit, let_go: Callable[[int], None]) -> None:
        self._limit = limit
        self._let_go = let_go
        self._most = _MOST
        self._idle: list[int] = []
        self._open = 0

    def take(self) -> int | None:
        """An idle stream, until `give`."""
        if not self._idle:
            return None
        fd = self._idle.pop()
        self._limit.idle(self, some=bool(self._idle))
        return fd

    def may_open(self) -> bool:
        """Whether the caller may open one more: it then says `give` or `failed`."""
        if self._open >= self._most or not self._limit.take():
            return False
        self._open += 1
        return True

    def give(self, fd: int) -> None:
        self._idle.append(fd)
        self._limit.idle(self, some=True)

    def failed(self) -> None:
        """The one that was to be opened could not be: do without."""
        self._open -= 1
        self._limit.give()
        self._most = self._open

    def shed(self) -> None:
        """Close one that is idle."""
        fd = self.take()
        if fd is not None:
            self._open -= 1
            self._limit.give()
            self._let_go(fd)

    def close(self) -> None:
        """Close those that are idle; who gives one back later calls it again."""
        self._most = 0
        while self._idle:
            self.shed()


def open_stream(fd: int) -> int:
    """In a thread: one more descriptor of the object behind `fd`.

    The server may know the object by its path only, and another one may be there by now. Its attributes
    are therefore asked for anew: `fill` then answers a version that is not the expected one.
    """
    stream = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refresh(stream)
        bypass_cache(stream)
    except BaseException:
        os.close(stream)
        raise
    return stream


def _statx(fd: int, flags: int) -> _Attributes:
    found = _Attributes()
    if _libc.statx(fd, b"", _AT_EMPTY_PATH | flags, _STATX_WANTED, ctypes.byref(found)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return found


def _refresh(fd: int) -> None:
    """Make the kernel ask the server for the attributes, whatever it remembers."""
    _statx(fd, _AT_STATX_FORCE_SYNC)


def bypass_cache(fd: int) -> None:
    """Ask for O_DIRECT; where there is no such thing, reads go through the page cache."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
    except OSError:
        return


def fill(fd: int, buffer: memoryview, offset: int) -> tuple[int, Version]:
    """In a thread: read up to the end of the buffer or the file. How many bytes, and the version after.

    The version is what the kernel remembers, where it remembers attributes for a while. Not asked for is
    the time of access: a read makes the kernel forget that, and to ask for it costs a round trip.
    """
    done = 0
    while True:
        try:
            n = os.preadv(fd, [buffer[done:]], offset + done)
        except OSError as error:
            flags = fcntl.fcntl(fd, fcntl.F_GETFL)
            if error.errno != errno.EINVAL or not flags & os.O_DIRECT:
                raise
            # An offset, a length or memory that this file system does not take directly.
            fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            continue
        done += n
        try:
            st: Stamped = _statx(fd, 0)
        except OSError:
            st = os.fstat(fd)  # a sandbox that knows no statx
        # A short read means the end of the file, or a signal.
        if not n or done == len(buffer) or offset + done >= st.st_size:
            return done, version_of(st)
