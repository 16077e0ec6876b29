"""Memory that is used again: never by two at once, and no more of it kept than asked for."""

from __future__ import annotations

import ctypes
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volfs.cache.buffers import Buffers

K = 1 << 10


def address(buffer: memoryview) -> int:
    """Where the memory lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


@pytest.mark.parametrize(
    ("size", "length"), [(1, 32 * K), (32 * K, 32 * K), (32 * K + 1, 64 * K), (1024 * K, 1024 * K)]
)
def test_sizes(size: int, length: int) -> None:
    """Powers of two, so that pieces fit each other's purposes; each begins on a page."""
    piece = Buffers(0).take(size)
    assert len(piece) == length
    assert address(piece) % 4096 == 0


def test_what_is_given_back_is_taken_again() -> None:
    """The same memory, with what was in it: no page is touched for the first time."""
    buffers = Buffers(1 << 20)
    piece = buffers.take(100)
    piece[:3] = b"old"
    where = address(piece)
    buffers.give(piece)
    again = buffers.take(30 * K)
    assert address(again) == where
    assert again[:3] == b"old"


@given(st.lists(st.one_of(st.integers(1, 300 * K), st.none()), max_size=60), st.integers(0, 500 * K))
def test_no_two_overlap_and_the_rest_is_bounded(steps: list[int | None], keep: int) -> None:
    """Whatever is taken and given back: pieces that are out are apart, and what is kept is at most `keep`."""
    buffers = Buffers(keep)
    out: list[memoryview] = []
    for size in steps:
        if size is not None:
            out.append(buffers.take(size))
        elif out:
            buffers.give(out.pop(0))
        places = sorted((address(piece), len(piece)) for piece in out)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(places))
        assert buffers._free_bytes == sum(len(p) for pieces in buffers._free.values() for p in pieces) <= keep
