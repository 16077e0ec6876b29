"""Checksums of copied bytes, block by block, as the cache index keeps them."""

from __future__ import annotations

import xxhash

from volfs.core.spans import BLOCK_BYTES, block_count

__all__ = ["BlockSums"]


class BlockSums:
    """xxh3_64 of each block of the pieces that `update` sees, in any order; what comes again counts."""

    def __init__(self) -> None:
        self._sums: dict[int, int] = {}

    def update(self, offset: int, piece: memoryview) -> None:
        """A piece that starts at a block, and ends at one or at the end of the file."""
        first = offset // BLOCK_BYTES
        for start in range(0, len(piece), BLOCK_BYTES):
            block = piece[start : start + BLOCK_BYTES]
            self._sums[first + start // BLOCK_BYTES] = xxhash.xxh3_64_intdigest(block)

    def finish(self, size: int) -> list[int]:
        """The sums of a file of this size, of which all was seen."""
        return [self._sums[number] for number in range(block_count(size))]
