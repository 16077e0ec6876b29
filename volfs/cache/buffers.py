"""Memory for bytes on their way from the store or the disk, used again and again.

A fresh piece of memory costs a page fault for every 4 KiB, which at a gigabyte a
second is a quarter of a core. It does not count what is in use: `Traffic` does.

*Concurrency:* the trio thread. Who gives memory back has nobody left who reads or
writes it: no thread, and no view that was answered and not copied yet.

*Invariants:* pieces begin on a page, as O_DIRECT asks, and no two of them overlap.
"""

from __future__ import annotations

import mmap
from typing import Final

__all__ = ["Buffers"]

#: Pieces have sizes of powers of two from here on, so that few sizes serve all.
_LEAST: Final = 32 << 10


class Buffers:
    """See the module. Up to `keep_bytes` are kept for the next one who asks."""

    __slots__ = ("_free", "_free_bytes", "_keep_bytes")

    def __init__(self, keep_bytes: int) -> None:
        self._keep_bytes = keep_bytes
        self._free: dict[int, list[memoryview]] = {}
        self._free_bytes = 0

    def take(self, size: int) -> memoryview:
        """At least `size` bytes of memory, with whatever was in it before."""
        length = _length(size)
        free = self._free.get(length)
        if free:
            self._free_bytes -= length
            return free.pop()
        return memoryview(mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def give(self, buffer: memoryview) -> None:
        """A piece, whole as `take` gave it, is free again."""
        if self._free_bytes + len(buffer) <= self._keep_bytes:
            self._free_bytes += len(buffer)
            self._free.setdefault(len(buffer), []).append(buffer)


def _length(size: int) -> int:
    return max(_LEAST, 1 << (size - 1).bit_length())
