"""What is measured: metadata calls a second and sequential MB a second, on a mount and on its backing.

Both sides of a figure run alternately, so that a change of the machine's mood meets both. It does not mount.
"""

from __future__ import annotations

import os
import shutil
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["Row", "measure"]

_FILES = 2000
_CREATES = 400
_LARGE_BYTES = 256 << 20
_PIECE_BYTES = 1 << 20

#: A probe answers units done; the caller times it.
Probe = Callable[[Path], float]


class Row(NamedTuple):
    """One figure: medians of both sides, a second."""

    name: str
    unit: str
    mount: float
    backing: float

    @property
    def ratio(self) -> float:
        return self.mount / self.backing


def _drop(what: str) -> None:
    """Drop the kernel's pages (1) or names (2); what is dirty is written first, or it would stay."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text(what)


def _new(root: Path) -> Path:
    return root / f"new-{root.name}"


def _lookups(root: Path) -> float:
    for i in range(_FILES):
        os.stat(root / "files" / f"f{i}")
    return _FILES


def _opens(root: Path) -> float:
    for i in range(_FILES):
        os.close(os.open(root / "files" / f"f{i}", os.O_RDONLY))
    return _FILES


def _creates(root: Path) -> float:
    for i in range(_CREATES):
        os.close(os.open(_new(root) / f"f{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    return _CREATES


def _creates_with_data(root: Path) -> float:
    for i in range(_CREATES):
        handle = os.open(_new(root) / f"d{i}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(handle, b"x" * 4096)
        os.close(handle)
    return _CREATES


def _read(root: Path, name: str = "large") -> float:
    buffer = bytearray(_PIECE_BYTES)
    got = 0
    with (root / name).open("rb", 0) as file:
        while count := file.readinto(buffer):
            got += count
    assert got == _LARGE_BYTES
    return got / 1e6


def _write(root: Path) -> float:
    piece = os.urandom(_PIECE_BYTES)
    with (root / "written").open("wb", 0) as file:
        for _ in range(_LARGE_BYTES // _PIECE_BYTES):
            file.write(piece)
    return _LARGE_BYTES / 1e6


def _write_and_sync(root: Path) -> float:
    piece = os.urandom(_PIECE_BYTES)
    with (root / "written").open("wb", 0) as file:
        for _ in range(_LARGE_BYTES // _PIECE_BYTES):
            file.write(piece)
        os.fsync(file.fileno())
    return _LARGE_BYTES / 1e6


def _nothing(root: Path) -> None:
    """No preparation."""


def _forget_names(root: Path) -> None:
    _drop("2")


def _clear_new(root: Path) -> None:
    """An empty directory of this side's own: the other side's last files may still be on their way."""
    shutil.rmtree(_new(root), ignore_errors=True)
    _new(root).mkdir()


def _remove_written(root: Path) -> None:
    (root / "written").unlink(missing_ok=True)


def _warm(root: Path) -> None:
    _read(root)


def _page_out(root: Path) -> None:
    """Read the large file, then drop its pages on this side only."""
    _read(root)
    handle = os.open(root / "large", os.O_RDONLY)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def _fresh_cold(root: Path, backing: Path) -> None:
    """A version that no cache ever saw, with nothing of it in memory on either side."""
    (backing / "cold").unlink(missing_ok=True)
    with (backing / "cold").open("wb", 0) as file:
        piece = os.urandom(_PIECE_BYTES)
        for _ in range(_LARGE_BYTES // _PIECE_BYTES):
            file.write(piece)
        os.fsync(file.fileno())
    os.utime(backing / "cold", ns=(10**18, 10**18))
    _drop("1")


def measure(mount: Path, backing: Path, rounds: int) -> list[Row]:
    """Every figure, on a mount that is otherwise unused."""
    (backing / "files").mkdir()
    for i in range(_FILES):
        (backing / "files" / f"f{i}").write_bytes(b"x" * 1000)
    with (backing / "large").open("wb", 0) as file:
        for _ in range(_LARGE_BYTES // _PIECE_BYTES):
            file.write(os.urandom(_PIECE_BYTES))
    probes: list[tuple[str, str, Callable[[Path], None], Probe]] = [
        ("lookups, names forgotten", "1/s", _forget_names, _lookups),
        ("lookups, names known", "1/s", _nothing, _lookups),
        ("opens", "1/s", _nothing, _opens),
        ("create+close, empty", "1/s", _clear_new, _creates),
        ("create+close, 4 KiB", "1/s", _clear_new, _creates_with_data),
        ("read, cold", "MB/s", lambda root: _fresh_cold(root, backing), lambda root: _read(root, "cold")),
        ("read, warm (valid pages)", "MB/s", _warm, _read),
        (
            "read, kernel's pages dropped",
            "MB/s",
            _page_out,
            _read,
        ),
        ("write", "MB/s", _remove_written, _write),
        ("write+fsync", "MB/s", _remove_written, _write_and_sync),
    ]
    rows = []
    for name, unit, prepare, probe in probes:
        sides: dict[Path, list[float]] = {mount: [], backing: []}
        for _ in range(rounds):
            for root, figures in sides.items():
                prepare(root)
                start = time.perf_counter()
                done = probe(root)
                figures.append(done / (time.perf_counter() - start))
        rows.append(Row(name, unit, statistics.median(sides[mount]), statistics.median(sides[backing])))
    return rows
