"""A full cache disk, and the cache's limit, on real file systems: what applications get, what is left (B1).

The daemon's cache directory is a small file system of the test's own. Where the
store must be away, it is the faulty store, whose uploads then fail.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.disk import du, fill, needs_root, small_disk, taken
from tests.mount.calls import error_of
from tests.mount.volume import Volume, eventually

pytestmark = [needs_root, pytest.mark.timeout(180)]

K, M = 1 << 10, 1 << 20

#: What a reader may have on its way into the cache beyond the limit: a block.
BLOCK = 256 * K

Make = Callable[..., Volume]


@pytest.fixture
def on_disk(make_volume: Make) -> Iterator[Make]:
    """Makes volumes whose cache directory is a small disk; takes the disks away after the daemons."""
    made: list[Volume] = []
    with ExitStack() as disks:

        def make(
            size: int, *options: str, kind: str = "tmpfs", mode: str = "cached", **more: object
        ) -> Volume:
            volume = make_volume(*options, mode=mode, **more)
            made.append(volume)
            disks.enter_context(small_disk(kind, volume.cache_dir, size))
            return volume

        try:
            yield make
        finally:
            forced = [line for volume in made for line in ended(volume)]
        assert forced == []


def ended(volume: Volume) -> list[str]:
    """Unmount; what had to be forced."""
    try:
        if volume.pid:
            volume.unmount()
    finally:
        forced = volume.discard()
    return forced


def faulty(volume: Volume) -> Path:
    """Mount with the faulty store; the directory that says what fails."""
    faults = volume.base / "faults"
    faults.mkdir(exist_ok=True)
    volume.environment["VOLFS_TEST_FAULTS"] = str(faults)
    volume.mount_by(Path(__file__).with_name("faulty_store.py"))
    return faults


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that are the same for the same seed, and do not compress."""
    return random.Random(seed).randbytes(size)


def copy(data: bytes, path: Path) -> None:
    """As cp does: pieces, and a close that counts."""
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(data), 128 * K):
            piece = data[start : start + 128 * K]
            assert file.write(piece) == len(piece)


def answers(volume: Volume, cached: Path, data: bytes) -> None:
    """Status, df and a read answer within a second."""
    began = time.monotonic()
    assert volume.status()["pid"] == volume.pid
    assert os.statvfs(volume.mountpoint).f_blocks > 0
    assert cached.read_bytes() == data
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_hog_on_the_cache_disk(on_disk: Make, kind: str) -> None:
    """B1a: case 30: reads go on, a write that cannot fit gets ENOSPC, and all is well once there is space."""
    volume = on_disk(64 * M, kind=kind)
    big, large = noise(30 * M), noise(50 * M, seed=2)
    (volume.backing / "big").write_bytes(big)
    volume.mount()
    hog = fill(volume.cache_dir, leave_bytes=8 * M)
    for _ in range(2):
        assert (
            hashlib.sha256((volume.mountpoint / "big").read_bytes()).digest() == hashlib.sha256(big).digest()
        )
    began = time.monotonic()
    assert error_of(lambda: copy(large, volume.mountpoint / "w")) == "ENOSPC"
    assert time.monotonic() - began < 20  # nothing that could come free is waited for
    copy(big[: 2 * M], volume.mountpoint / "small")
    assert volume.is_alive()
    hog.unlink()
    copy(large, volume.mountpoint / "w")
    volume.settle()
    assert (volume.backing / "w").read_bytes() == large
    assert (volume.backing / "small").read_bytes() == big[: 2 * M]
    assert volume.leftovers() == []
    assert volume.status()["errors"] == 0


@pytest.mark.parametrize("kind", ["tmpfs", "ext4"])
def test_commits_on_a_disk_without_a_free_byte(on_disk: Make, kind: str) -> None:
    """The journal has room of its own: what is staged is committed, and by that the disk gets free again."""
    volume = on_disk(16 * M, "--commit-interval", "60", kind=kind, mode="cached-background")
    faults = faulty(volume)
    (faults / "upload").write_text("EIO always")
    files = {f"f{i}": noise(200 * K + i, seed=i) for i in range(20)}
    for name, data in files.items():
        copy(data, volume.mountpoint / name)
    eventually(lambda: volume.status()["commit"]["failed"] >= 20, what="all were tried")
    hog = fill(volume.cache_dir)
    (faults / "upload").unlink()
    volume.settle()
    assert {name: (volume.backing / name).read_bytes() for name in files} == files
    assert volume.leftovers() == []
    hog.unlink()
    copy(b"after", volume.mountpoint / "after")
    volume.settle()
    assert (volume.backing / "after").read_bytes() == b"after"


def test_writers_wait_for_commits(on_disk: Make) -> None:
    """B1: a writer on a full disk waits, holds up nobody, and goes on when a commit has freed its bytes."""
    volume = on_disk(32 * M, "--commit-interval", "60", mode="cached-background")
    warm = noise(M, seed=3)
    (volume.backing / "warm").write_bytes(warm)
    faults = faulty(volume)
    (faults / "upload").write_text("EIO always")
    first, second = noise(20 * M), noise(20 * M, seed=2)
    copy(first, volume.mountpoint / "first")
    writer = threading.Thread(target=copy, args=(second, volume.mountpoint / "second"))
    writer.start()
    eventually(lambda: os.statvfs(volume.cache_dir).f_bavail * 4096 < 256 * K, what="the disk is full")
    for _ in range(5):
        answers(volume, volume.mountpoint / "warm", warm)
        assert writer.is_alive()
    (faults / "upload").unlink()
    writer.join(60)
    assert not writer.is_alive()
    volume.settle()
    assert (volume.backing / "first").read_bytes() == first
    assert (volume.backing / "second").read_bytes() == second


def test_forty_dirty_files_with_the_store_away(make_volume: Make) -> None:
    """Case 5, B1: 160 MiB that only we have, under a limit of 64 MiB; reads in between cost none of it."""
    volume = make_volume("--cache-size", "64M", "--commit-interval", "60", mode="cached-background")
    warm = {f"warm{i}": noise(4 * M, seed=100 + i) for i in range(12)}
    for name, data in warm.items():
        (volume.backing / name).write_bytes(data)
        (volume.backing / f"later-{name}").write_bytes(data)
    faults = faulty(volume)
    assert all((volume.mountpoint / name).read_bytes() == data for name, data in warm.items())
    (faults / "upload").write_text("EIO always")
    for i in range(40):
        copy(noise(4 * M, seed=i), volume.mountpoint / f"d{i}")
        if i % 4 == 0:
            for name, data in warm.items():
                assert (volume.mountpoint / name).read_bytes() == data
            staged = sum(path.stat().st_blocks * 512 for path in (volume.cache_dir / "staging").iterdir())
            assert du(volume.cache_dir) <= max(64 * M, staged + 4 * M) + BLOCK
    assert volume.status()["cache"]["used_bytes"] < 4 * M
    for i in range(40):
        assert (volume.mountpoint / f"d{i}").read_bytes() == noise(4 * M, seed=i)
    (faults / "upload").unlink()
    volume.settle()
    for i in range(40):
        assert (volume.backing / f"d{i}").read_bytes() == noise(4 * M, seed=i)
    assert du(volume.cache_dir) <= 64 * M + BLOCK
    for name, data in warm.items():  # the kernel has no pages of these
        assert (volume.mountpoint / f"later-{name}").read_bytes() == data
    assert volume.status()["cache"]["used_bytes"] > 32 * M  # nothing is counted as staged any more
    assert volume.leftovers() == []


def test_gibibyte_through_a_small_cache(on_disk: Make) -> None:
    """B1, case 29: a file of 16 times the limit reads right with 20 files open; the disk never holds more."""
    volume = on_disk(256 * M, "--cache-size", "64M", kind="ext4")
    before = taken(volume.cache_dir)
    pieces = {offset: noise(3 * M, seed=offset) for offset in range(0, 1 << 30, 64 * M)}
    with (volume.backing / "big").open("wb") as file:
        for offset, piece in pieces.items():
            file.seek(offset)
            file.write(piece)
        file.truncate(1 << 30)
    for i in range(20):
        (volume.backing / f"r{i}").write_bytes(noise(4 * M, seed=i))
    volume.mount()
    largest, stop = 0, threading.Event()

    def sample() -> None:
        nonlocal largest
        while not stop.wait(0.002):
            largest = max(largest, taken(volume.cache_dir) - before)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        with ExitStack() as opened:
            for i in range(20):
                file_ = opened.enter_context((volume.mountpoint / f"r{i}").open("rb", buffering=0))
                assert file_.read(4 * M) == noise(4 * M, seed=i)
            with (volume.mountpoint / "big").open("rb", buffering=0) as big:
                for offset in range(0, 1 << 30, M):
                    expected = pieces.get(offset - offset % (64 * M), b"")[offset % (64 * M) :][:M]
                    assert big.read(M) == expected.ljust(M, b"\0"), offset
    finally:
        stop.set()
        sampler.join()
    assert 32 * M < largest <= 64 * M + BLOCK  # one reader at a time
    assert du(volume.cache_dir) <= 64 * M + BLOCK


def test_start_on_a_full_disk(on_disk: Make) -> None:
    """What was acknowledged before a crash is committed by a start that finds no free byte."""
    volume = on_disk(16 * M, "--commit-interval", "60", mode="cached-background")
    faults = faulty(volume)
    (faults / "upload").write_text("EIO always")
    data = noise(3 * M)
    copy(data, volume.mountpoint / "f")
    volume.kill()
    hog = fill(volume.cache_dir)
    (faults / "upload").unlink()
    volume.remount()
    volume.settle()
    assert (volume.backing / "f").read_bytes() == data
    assert volume.leftovers() == []
    hog.unlink()


def test_append_that_does_not_fit(on_disk: Make) -> None:
    """A failed append leaves the file as long as it was, and the same append is right once there is space."""
    volume = on_disk(16 * M, mode="cached").mount()
    handle = os.open(volume.mountpoint / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(handle, b"first line\n")
        hog = fill(volume.cache_dir, leave_bytes=64 * K)
        record, done = noise(M), 0

        def append() -> None:
            nonlocal done
            while done < M:
                done += os.write(handle, record[done:])  # the kernel asks in pieces: some of them fit

        assert error_of(append) == "ENOSPC"
        assert done < M
        assert os.fstat(handle).st_size == 11 + done
        assert (volume.mountpoint / "log").read_bytes() == b"first line\n" + record[:done]
        hog.unlink()
        append()
    finally:
        os.close(handle)
    volume.settle()
    assert (volume.backing / "log").read_bytes() == b"first line\n" + record
