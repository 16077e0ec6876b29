"""Small file systems of a test's own: the disks that get full.

Mounted in a directory of the test, and unmounted whatever happens in it.
"""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import pytest

__all__ = ["du", "fill", "needs_root", "small_disk", "taken"]

needs_root = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root may mount a small file system; make test runs as root"
)


@contextmanager
def small_disk(kind: str, at: Path, size_bytes: int) -> Iterator[Path]:
    """A `tmpfs` or `ext4` of this size, mounted at an empty directory."""
    at.mkdir(exist_ok=True)
    if kind == "tmpfs":
        _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "none", str(at))
    else:
        image = at.with_name(f"{at.name}.img")
        with image.open("wb") as file:
            file.truncate(size_bytes)
        _run("mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", str(image))
        _run("mount", "-o", "loop", str(image), str(at))
    try:
        yield at
    finally:
        try:
            _run("umount", str(at))
        except subprocess.CalledProcessError:
            _run("umount", "--lazy", str(at))  # a descriptor that a test left open fails it, no later one
            raise


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def fill(disk: Path, leave_bytes: int = 0) -> Path:
    """Write until the disk has no more than this left; the file that took the rest."""
    hog = disk / "hog"
    with hog.open("wb", buffering=0) as file:
        for piece in (1 << 20, 4096, 1):
            while _free(disk) >= leave_bytes + piece and _took(file, bytes(piece)):
                pass
        os.fsync(file.fileno())
    return hog


def taken(disk: Path) -> int:
    """Bytes that everything on it takes, at one moment, which a walk cannot say of files that come and go."""
    st = os.statvfs(disk)
    return (st.f_blocks - st.f_bfree) * st.f_frsize


def _took(file: FileIO, data: bytes) -> bool:
    try:
        return file.write(data) == len(data)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False


def _free(disk: Path) -> int:
    st = os.statvfs(disk)
    return st.f_bavail * st.f_frsize


def du(directory: Path) -> int:
    """Allocated bytes of everything below, as du(1) counts: folders too, a file with several names once."""
    seen: dict[tuple[int, int], int] = {}
    for folder, _, names in os.walk(directory):
        for name in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                st = os.lstat(name)
            except FileNotFoundError:
                continue  # evicted while we look
            seen[st.st_dev, st.st_ino] = st.st_blocks * 512
    return sum(seen.values())
