"""Whether a file that took another one's name is that one with more at the end.

A log that another mount commits is a new object each time. Who follows it
through an open handle may go on with the new object, because every byte that it
can have seen is the same (R3); for anything else the handle keeps what it opened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from volfs.errors import VolfsError
from volfs.store.base import Reader, Stat, Store

__all__ = ["COMPARE_BYTES", "open_if_grown"]

#: Compared up to this size: a larger log is followed by opening it again, as `tail -F` does.
COMPARE_BYTES = 256 << 20

_PIECE = 1 << 20


Read = Callable[[int, int, None], Awaitable[bytes | bytearray | memoryview]]


async def open_if_grown(
    store: Store, path: bytes, st: Stat, read: Read, size: int
) -> tuple[Reader, Stat] | None:
    """What is at `path`, open, with its attributes, if it is the object of `st` and begins with the `size`
    bytes that `read` gives; else None.
    """
    try:
        successor = await store.open(path)
    except VolfsError:
        return None
    try:
        now = await successor.stat()
        if now.identity == st.identity and await _extends(read, successor, size):
            return successor, now
    except VolfsError:
        pass  # it cannot be told
    successor.close()
    return None


async def _extends(read: Read, successor: Reader, size: int) -> bool:
    """Whether the first `size` bytes of `successor` are those that `read` gives."""
    for offset in range(0, size, _PIECE):
        n = min(_PIECE, size - offset)
        # Both may answer with one shared buffer: the first must be copied before the second is asked.
        if bytes(await read(offset, n, None)) != await successor.read(offset, n):
            return False
    return True
