"""Checksums of a byte stream, block by block, as the cache index keeps them."""

from __future__ import annotations

import xxhash

from volfs.cache.fill import BLOCK_BYTES

__all__ = ["BlockSums"]


class BlockSums:
    """xxh3_64 of each block of the bytes that `update` sees in order."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._hash = xxhash.xxh3_64()
        self._filled = 0

    def update(self, piece: memoryview) -> None:
        while piece:
            part = piece[: BLOCK_BYTES - self._filled]
            self._hash.update(part)
            self._filled += len(part)
            piece = piece[len(part) :]
            if self._filled == BLOCK_BYTES:
                self._next()

    def _next(self) -> None:
        self._sums.append(self._hash.intdigest())
        self._hash.reset()
        self._filled = 0

    def finish(self) -> list[int]:
        """The sums, the last one of a short block if the stream did not end on a boundary."""
        if self._filled:
            self._next()
        return self._sums
