"""Extents and blocks: tables at the edges, properties for the rest."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volfs.core.spans import BLOCK_BYTES as B
from volfs.core.spans import (
    INODE_BYTES,
    Extent,
    block_count,
    block_extent,
    blocks_of,
    clip,
    cost_bytes,
    runs,
)

SIZES = st.integers(1, 40 * B)


@pytest.mark.parametrize(
    ("offset", "size", "file_size", "expected"),
    [
        (0, 10, 10, Extent(0, 10)),
        (0, 11, 10, Extent(0, 10)),
        (9, 5, 10, Extent(9, 1)),
        (10, 5, 10, Extent(10, 0)),
        (99, 5, 10, Extent(99, 0)),
        (0, 0, 10, Extent(0, 0)),
        (0, 5, 0, Extent(0, 0)),
    ],
)
def test_clip(offset: int, size: int, file_size: int, expected: Extent) -> None:
    """Only what lies inside the file is left."""
    assert clip(offset, size, file_size) == expected


@pytest.mark.parametrize(
    ("extent", "expected"),
    [
        (Extent(0, 0), range(0)),
        (Extent(0, 1), range(1)),
        (Extent(0, B), range(1)),
        (Extent(0, B + 1), range(2)),
        (Extent(B - 1, 1), range(1)),
        (Extent(B - 1, 2), range(2)),
        (Extent(B, 4 * B), range(1, 5)),
    ],
)
def test_blocks_of(extent: Extent, expected: range) -> None:
    """Every block with a byte of the extent, and no other."""
    assert blocks_of(extent) == expected


@pytest.mark.parametrize(("size", "count"), [(0, 0), (1, 1), (B, 1), (B + 1, 2)])
def test_block_count(size: int, count: int) -> None:
    """The last block may be short."""
    assert block_count(size) == count


@given(size=SIZES, data=st.data())
def test_blocks_cover_their_extent(size: int, data: st.DataObject) -> None:
    """The extent of an extent's blocks holds it, inside the file, and begins on a boundary."""
    offset = data.draw(st.integers(0, size - 1))
    extent = clip(offset, data.draw(st.integers(1, size)), size)
    whole = block_extent(blocks_of(extent), size)
    assert whole.offset <= extent.offset
    assert extent.end <= whole.end <= size
    assert whole.offset % B == 0
    assert whole.end == size or whole.end % B == 0


@given(st.sets(st.integers(0, 60)), st.integers(1, 9))
def test_runs_keep_every_number(numbers: set[int], most: int) -> None:
    """Runs are the same numbers in order, without gaps, and none is too long."""
    found = list(runs(sorted(numbers), most))
    assert [n for run in found for n in run] == sorted(numbers)
    assert all(0 < len(run) <= most for run in found)
    for left, right in pairwise(found):
        assert left.stop < right.start or len(left) == most


@pytest.mark.parametrize(
    ("count", "has_last", "size", "expected"),
    [
        (0, False, 10 * B, 0),
        (1, True, 1, 4096 + INODE_BYTES),
        (1, True, 4097, 8192 + INODE_BYTES),
        (1, False, 10 * B, B + INODE_BYTES),
        (2, True, 10 * B, 2 * B + INODE_BYTES),
        (2, True, 10 * B - 1, 2 * B + INODE_BYTES),
        (2, True, 9 * B + 1, B + 4096 + INODE_BYTES),
        (5, False, 10 * B, 5 * B + 4096 + INODE_BYTES),
    ],
)
def test_cost(count: int, has_last: bool, size: int, expected: int) -> None:
    """Blocks cost whole pages, a file with many holes a node of the extent tree, and any file its inode."""
    assert cost_bytes(count, has_last, size) == expected


@given(size=SIZES, data=st.data())
def test_cost_grows_with_blocks(size: int, data: st.DataObject) -> None:
    """One more block never costs less, and at most a block and a node more: eviction relies on it."""
    count = data.draw(st.integers(0, block_count(size) - 1))
    step = cost_bytes(count + 1, False, size) - cost_bytes(count, False, size)
    assert B <= step - (INODE_BYTES if not count else 0) <= B + 4096
