"""Extents of a file and the aligned blocks that cover them.

It says which blocks a read touches, where a block lies, and what blocks cost on
a disk. It does not know which of them are present. This module is pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

__all__ = [
    "BLOCK_BYTES",
    "INODE_BYTES",
    "Extent",
    "block_count",
    "block_extent",
    "blocks_of",
    "clip",
    "cost_bytes",
    "runs",
]

#: The unit of fetch, checksum and presence. A random read fetches one: at 100 MB/s that is a third of a
#: millisecond beside a round trip of ten. A smaller one would make the index longer (65,536 rows for 2 GiB).
BLOCK_BYTES: Final = 32 << 10

#: The unit in which file systems allocate, and the size of one node of an extent tree.
_PAGE: Final = 4 << 10

#: What a file costs besides its data: an inode of 256 or 512 bytes, a name in a folder, a row in the index.
#: Less than a page, but a page is the unit, and 20,000 tiny files must not cost nothing.
INODE_BYTES: Final = _PAGE

#: ext4 keeps 4 extents in the inode and then up to 340 in each tree node; nodes may be half full.
_EXTENTS_INLINE: Final = 4
_EXTENTS_PER_NODE: Final = 128


class Extent(NamedTuple):
    """`size` bytes at `offset`."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size


def clip(offset: int, size: int, file_size: int) -> Extent:
    """The part of the extent that lies inside the file; of size 0 where there is none."""
    return Extent(offset, max(0, min(size, file_size - offset)))


def blocks_of(extent: Extent) -> range:
    """Numbers of the blocks that hold any byte of the extent."""
    if extent.size <= 0:
        return range(0)
    return range(extent.offset // BLOCK_BYTES, (extent.end - 1) // BLOCK_BYTES + 1)


def block_count(file_size: int) -> int:
    """Number of blocks of a file, the last of which may be short."""
    return -(-file_size // BLOCK_BYTES)


def block_extent(blocks: range, file_size: int) -> Extent:
    """Where consecutive blocks lie in the file; the last one may be short."""
    offset = blocks.start * BLOCK_BYTES
    return Extent(offset, min(blocks.stop * BLOCK_BYTES, file_size) - offset)


def runs(numbers: Iterable[int], most: int) -> Iterator[range]:
    """Ascending numbers as ranges without a gap, each of at most `most` numbers."""
    start = stop = -1
    for number in numbers:
        if number != stop or stop - start == most:
            if stop > start:
                yield range(start, stop)
            start = number
        stop = number + 1
    if stop > start:
        yield range(start, stop)


def cost_bytes(count: int, has_last: bool, file_size: int) -> int:
    """What `count` blocks of a file take on a disk at most, the file's last block among them or not.

    Whole pages, the nodes of the extent tree that a file with holes needs, and its inode. A file without
    blocks costs nothing: it is on its way out.
    """
    if not count:
        return 0
    data = count * BLOCK_BYTES
    if has_last:
        last = file_size - (block_count(file_size) - 1) * BLOCK_BYTES
        data -= BLOCK_BYTES - -(-last // _PAGE) * _PAGE
    nodes = -(-max(0, count - _EXTENTS_INLINE) // _EXTENTS_PER_NODE)
    return data + nodes * _PAGE + INODE_BYTES
