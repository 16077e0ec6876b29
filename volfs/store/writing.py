"""One new file in a store over a network, written over several descriptors at once.

Many a server, and the slow ones most of all, gives each open file a share of its
own, and each request a round trip. Large pieces in flight side by side, each over
its own descriptor, take the whole line. Where the file system has no asynchronous
direct writes, pieces are written one after the other, as anybody would.

Blocking; called from worker threads, for one file by one thread at a time.

*Invariants:* the memory of all files together is bounded by `_BUFFERS`, beyond a
mebibyte for each. A piece is observed as it is written, whatever happens to the source.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Final

from volfs import crash
from volfs.core.spans import Extent
from volfs.store.aio import Queue
from volfs.store.base import Observer
from volfs.store.copying import copy_extent, read_full, write_all

__all__ = ["PIECE_BYTES", "WideWriter"]

#: The kernel asks for security.capability before each write, at the price of a round trip: at 10 ms, pieces
#: of this size let 800 MB/s through.
PIECE_BYTES: Final = 8 << 20

#: Descriptors of one file, and pieces of it in flight.
_STREAMS: Final = 8

#: Pieces of all files in flight: 96 MiB. A file that finds none free is copied a mebibyte at a time.
_BUFFERS: Final = threading.BoundedSemaphore(12)
_PLAIN_BYTES: Final = 1 << 20

#: What direct writes may ask of addresses, offsets and sizes.
_ALIGNMENT: Final = 4096

#: How a file system says that it cannot do this.
_CANNOT: Final = {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EAGAIN}


class _Buffer:
    """Memory of a piece, aligned as direct writes want it."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, PIECE_BYTES)
        self.view = memoryview(self._memory)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))


class WideWriter:
    """See the module. `fd` stays the caller's. `parallel` False: a local disk needs none of this."""

    def __init__(self, fd: int, *, parallel: bool) -> None:
        self._fd = fd
        self._parallel = parallel
        self._more: list[int] = []
        self.size = 0  # that the file has

    def bring(self, source: int, extents: Sequence[Extent], observe: Observer | None) -> None:
        """Copy parts of `source` to their place. OSError; EIO if the source is shorter."""
        pieces = deque(_pieces(extents))
        if self._parallel and len(pieces) > 1:
            self._bring_parallel(source, pieces, observe)
        if pieces:
            most = max(piece.size for piece in pieces)
            buffer = memoryview(bytearray(min(_PLAIN_BYTES, most)))
            for piece in pieces:
                copy_extent(source, self._fd, piece.offset, piece.size, buffer, observe)
                self.size = max(self.size, piece.end)

    def _bring_parallel(self, source: int, pieces: deque[Extent], observe: Observer | None) -> None:
        """Write the pieces, none if it cannot be done so: who calls writes what is left."""
        held = 0
        while held < min(_STREAMS, len(pieces)) and _BUFFERS.acquire(blocking=False):
            held += 1
        try:
            queue = self._prepare(held, max(piece.end for piece in pieces)) if held else None
            if queue is not None:
                with closing(queue):
                    flight = _Flight(
                        self._fd, self._more, queue, held
                    )  # it has the memory, also after an error
                    flight.bring(source, pieces, observe)
        finally:
            for _ in range(held):
                _BUFFERS.release()

    def _prepare(self, count: int, size: int) -> Queue | None:
        """All that asynchronous writes up to `size` need; None where it is not to be had."""
        try:
            while len(self._more) < count:
                self._more.append(os.open(f"/proc/self/fd/{self._fd}", os.O_RDWR | os.O_CLOEXEC))
                # Not at open: a server that is handed the flag may take it for its own disk's.
                fcntl.fcntl(self._more[-1], fcntl.F_SETFL, os.O_DIRECT)
            queue = Queue(count)
        except OSError:
            self._parallel = False
            return None
        try:
            self._grow(size)
        except BaseException:
            queue.close()
            raise
        return queue

    def _grow(self, size: int) -> None:
        """A write that extends the file waits for itself."""
        if size > self.size:
            os.ftruncate(self._fd, size)
            self.size = size

    def take(self) -> list[int]:
        """The further descriptors, for the caller to close."""
        more, self._more = self._more, []
        return more

    def close(self) -> None:
        """Let go of the further descriptors; what a server tells only then is raised."""
        for fd in self.take():
            os.close(fd)


def _pieces(extents: Sequence[Extent]) -> Iterator[Extent]:
    for extent in extents:
        for offset in range(extent.offset, extent.end, PIECE_BYTES):
            yield Extent(offset, min(PIECE_BYTES, extent.end - offset))


class _Flight:
    """Pieces in flight, each in a slot: a buffer and a descriptor."""

    def __init__(self, plain: int, direct: list[int], queue: Queue, slots: int) -> None:
        self._plain = plain
        self._direct = direct
        self._queue = queue
        self._buffers = [_Buffer() for _ in range(slots)]
        self._free = list(range(slots))
        self._flying: dict[int, Extent] = {}

    def bring(self, source: int, pieces: deque[Extent], observe: Observer | None) -> None:
        while pieces or self._flying:
            while pieces and self._free:
                piece = pieces[0]
                slot = self._free[-1]
                view = self._buffers[slot].view[: piece.size]
                if read_full(source, view, piece.offset) < piece.size:
                    raise OSError(errno.EIO, "a staged file became shorter while it was copied")
                if observe is not None:
                    observe(piece.offset, view)
                self._send(slot, piece)
                pieces.popleft()
            if self._flying:
                self._land(*self._queue.wait())

    def _send(self, slot: int, piece: Extent) -> None:
        """Begin to write what is in the slot's buffer; a rest that is no whole page is written at once."""
        sent = piece.size - piece.size % _ALIGNMENT if piece.offset % _ALIGNMENT == 0 else 0
        buffer = self._buffers[slot]
        if sent:
            try:
                self._queue.write(slot, self._direct[slot], buffer.address, sent, piece.offset)
            except OSError as error:
                if error.errno not in _CANNOT:
                    raise
                sent = 0
            else:
                self._free.remove(slot)
                self._flying[slot] = Extent(piece.offset, sent)
        if sent < piece.size:
            write_all(self._plain, buffer.view[sent : piece.size], piece.offset + sent)

    def _land(self, slot: int, result: int) -> None:
        piece = self._flying.pop(slot)
        self._free.append(slot)
        if result < 0 and -result not in _CANNOT:
            raise OSError(-result, os.strerror(-result))
        done = max(result, 0)
        if done < piece.size:  # the rest says why, or is written
            write_all(self._plain, self._buffers[slot].view[done : piece.size], piece.offset + done)
        crash.point("copy.piece")
