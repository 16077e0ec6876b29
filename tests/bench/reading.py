"""Reading as programs do, timed by the caller: a whole file, some of it, several streams.

Each answers how much it read, and keeps a few pieces by their offsets, to be compared with the original once
the clock has stopped.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.bench.settings import MIB

__all__ = ["Pieces", "Read", "read_streams", "read_whole", "together"]

#: What cat, tar and most loaders ask for is 128 KiB to 1 MiB; the kernel sends at most 1 MiB a request.
_PIECE_BYTES: Final = MIB
_KEPT: Final = 8

Pieces = dict[int, bytes]


class Read:
    """What was read, and whether it was cut off."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.cut = False
        self.pieces: Pieces = {}

    @property
    def mbps(self) -> float:
        """Megabytes (1e6) a second."""
        return self.count / self.seconds / 1e6


def together(reads: Sequence[Read]) -> Read:
    """Several readings in a row as one; its pieces are the last one's."""
    whole = Read()
    for read in reads:
        whole.count += read.count
        whole.seconds += read.seconds
        whole.cut = whole.cut or read.cut
        whole.pieces = read.pieces
    return whole


def read_whole(path: Path, cut_s: float | None = None) -> Read:
    """One sequential reader from open to the end, or until `cut_s` is over."""
    start = time.perf_counter()
    handle = os.open(path, os.O_RDONLY)
    try:
        return _read(handle, [(0, os.fstat(handle).st_size)], start, cut_s)
    finally:
        os.close(handle)


def read_streams(path: Path, streams: int, cut_s: float | None = None) -> Read:
    """`streams` descriptors at equal distances, each read to the next one's start, a piece in turn."""
    start = time.perf_counter()
    handles = [os.open(path, os.O_RDONLY) for _ in range(streams)]
    try:
        size = os.fstat(handles[0]).st_size
        step = size // streams // _PIECE_BYTES * _PIECE_BYTES
        parts = [(i * step, size if i == streams - 1 else (i + 1) * step) for i in range(streams)]
        return _interleave(handles, parts, start, cut_s)
    finally:
        for handle in handles:
            os.close(handle)


def _read(handle: int, parts: Sequence[tuple[int, int]], start: float, cut_s: float | None) -> Read:
    return _interleave([handle] * len(parts), parts, start, cut_s)


def _interleave(
    handles: Sequence[int], parts: Sequence[tuple[int, int]], start: float, cut_s: float | None
) -> Read:
    read = Read()
    buffer = memoryview(bytearray(_PIECE_BYTES))
    longest = max(end - begin for begin, end in parts)
    keep = max(1, longest * len(parts) // _PIECE_BYTES // _KEPT)
    number = 0
    for moved in range(0, longest, _PIECE_BYTES):
        for handle, (begin, end) in zip(handles, parts, strict=True):
            offset = begin + moved
            if offset >= end:
                continue
            got = os.preadv(handle, [buffer[: min(_PIECE_BYTES, end - offset)]], offset)
            if number % keep == 0:
                read.pieces[offset] = bytes(buffer[:got])
            number += 1
            read.count += got
        if cut_s is not None and time.perf_counter() - start > cut_s:
            read.cut = True
            break
    read.seconds = time.perf_counter() - start
    return read
