"""What different readers of a large file cost the store, by the daemon's own counters."""

from __future__ import annotations

import mmap
import os
import random
from typing import Any

import pytest

from tests.conftest import Area
from volfs.core.spans import BLOCK_BYTES

pytestmark = pytest.mark.modes("cached")

M = 1 << 20
SIZE = 48 * M


@pytest.fixture
def data(area: Area) -> bytes:
    """The content of `big`, which lies in the store and is old enough to be kept."""
    data = os.urandom(SIZE)
    (area.back / "big").write_bytes(data)
    area.settle()
    return data


def misses(area: Area) -> int:
    """Blocks that a read had to fetch."""
    return int(status(area)["cache"]["misses"])


def status(area: Area) -> dict[str, Any]:
    """The daemon's counters."""
    return area.volume.status()


def test_two_handles_are_one_stream(area: Area, data: bytes) -> None:
    """R9: pieces read in turn by two handles are fetched ahead as those of one handle."""
    handles = [os.open(area.here / "big", os.O_RDONLY) for _ in range(2)]
    for fd in handles:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # the kernel shall not fetch ahead itself
    before = misses(area)
    for number, offset in enumerate(range(0, SIZE, M)):
        assert os.pread(handles[number % 2], M, offset) == data[offset : offset + M]
    assert misses(area) - before <= 4 * M // BLOCK_BYTES
    for fd in handles:
        os.close(fd)


def test_a_mapping_is_a_stream(area: Area, data: bytes) -> None:
    """R9: page faults in order (safetensors, np.load) are fetched ahead."""
    before = misses(area)
    with (area.here / "big").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        for offset in range(0, SIZE, 64 << 10):
            assert mapping[offset : offset + 16] == data[offset : offset + 16]
    assert misses(area) - before <= SIZE // 4 // BLOCK_BYTES


def test_random_reads_fetch_little(area: Area, data: bytes) -> None:
    """R9: 100 reads of 4 KiB fetch 32 KiB each, and nothing beside."""
    rng = random.Random(3)
    with (area.here / "big").open("rb", buffering=0) as file:
        before = status(area)["store_read_bytes"]
        for _ in range(100):
            offset = rng.randrange(1, SIZE // 4096) * 4096
            assert os.pread(file.fileno(), 4096, offset) == data[offset : offset + 4096]
    assert status(area)["store_read_bytes"] - before <= 100 * BLOCK_BYTES


def test_valid_pages_cost_no_read(area: Area, data: bytes) -> None:
    """R9a: a second epoch over data in the page cache asks for attributes and an open, never for bytes."""
    assert (area.here / "big").read_bytes() == data
    before = status(area)
    assert (area.here / "big").read_bytes() == data
    after = status(area)
    assert before["operations"]["read"] == after["operations"]["read"] > 0
    assert after["requests"] - before["requests"] <= 8
