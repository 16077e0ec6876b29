"""Mappings: shared and private, read and written, and what of them reaches the store."""

from __future__ import annotations

import mmap
import os

import pytest

from tests.conftest import Area
from tests.mount.volume import eventually

pytestmark = pytest.mark.modes("local", "cached", "background")


def test_shared_mapping_of_a_file_just_written(area: Area) -> None:
    """A shared read-only mapping shows every byte of a file that was written a moment ago (safetensors)."""
    data = os.urandom(3 * 1024 * 1024 + 17)
    (area.here / "mm").write_bytes(data)
    with (area.here / "mm").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapping:
        assert mapping[:] == data


def test_written_mapping_is_committed(area: Area) -> None:
    """A store through a mapping whose descriptor is closed is read at once, and committed after msync and
    unmap.
    """
    path = area.here / "mw"
    path.write_bytes(b"a" * 8192)
    area.settle()
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 8192)
    mapping[4096:4100] = b"ZZZZ"
    mapping.flush()
    mapping.close()
    assert path.read_bytes()[4096:4100] == b"ZZZZ"
    eventually(lambda: (area.back / "mw").read_bytes()[4096:4100] == b"ZZZZ", 10, "the store has it")
    assert len((area.back / "mw").read_bytes()) == 8192


def test_mapping_without_msync_is_committed(area: Area) -> None:
    """Without msync the pages arrive after the close of the descriptor; they are committed all the same
    (W3).
    """
    path = area.here / "mw"
    with path.open("w+b") as file:
        file.truncate(1 << 20)
        mapping = mmap.mmap(file.fileno(), 1 << 20)
    for offset in range(0, 1 << 20, 4096):
        mapping[offset] = offset // 4096 % 256
    mapping.close()
    expected = b"".join(bytes([i % 256]) + bytes(4095) for i in range(256))
    assert path.read_bytes() == expected
    eventually(lambda: (area.back / "mw").read_bytes() == expected, 15, "the store has it")


def test_mapping_and_write_see_each_other(area: Area) -> None:
    """write() shows in a shared mapping, and a store through the mapping shows to read() of another
    handle.
    """
    path = area.here / "both"
    path.write_bytes(b"." * 10_000)
    with path.open("r+b", 0) as one, path.open("rb", 0) as two, mmap.mmap(one.fileno(), 0) as mapping:
        one.seek(5000)
        one.write(b"written")
        assert mapping[5000:5007] == b"written"
        mapping[6000:6006] = b"mapped"
        assert os.pread(two.fileno(), 6, 6000) == b"mapped"
        mapping.flush()
    eventually(lambda: (area.back / "both").read_bytes()[6000:6006] == b"mapped", 10, "the store has it")
    assert (area.back / "both").read_bytes()[5000:5007] == b"written"


def test_private_mapping_stays_private(area: Area) -> None:
    """A store through a private mapping changes neither the file nor the store."""
    path = area.here / "p"
    path.write_bytes(b"a" * 8192)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as mapping:
        mapping[0:4] = b"XXXX"
        assert mapping[0:4] == b"XXXX"
        assert path.read_bytes() == b"a" * 8192
    area.settle()
    assert (area.back / "p").read_bytes() == b"a" * 8192


def test_mapping_of_an_unlinked_file(area: Area) -> None:
    """A mapping outlives the name and the descriptor."""
    path = area.here / "u"
    path.write_bytes(b"x" * 100_000)
    with path.open("r+b") as file:
        mapping = mmap.mmap(file.fileno(), 0)
    path.unlink()
    mapping[99_999] = ord("y")
    assert mapping[99_998:] == b"xy"
    mapping.close()
    area.settle()
    assert os.listdir(area.back) == []
