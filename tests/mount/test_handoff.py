"""Hand-off: the local path of a cache file is a snapshot of a version, for as long as a client has it."""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.calls import NOBODY, as_user, error_of, in_process
from tests.mount.volume import PLAIN, Volume, eventually

pytestmark = [
    pytest.mark.skipif(PLAIN, reason="a plain directory hands nothing out"),
    pytest.mark.timeout(180),
]

K, M = 1 << 10, 1 << 20

Make = Callable[..., Volume]

_seeds = itertools.count(1000)


def noise(size: int, seed: int = 1) -> bytes:
    """Bytes that nothing makes smaller."""
    return random.Random(seed).randbytes(size)


def path_of(file: Path) -> Path:
    """Where its cache file is, leased."""
    return Path(os.fsdecode(os.getxattr(file, "user.volfs.path")))


def release(file: Path) -> bool:
    """End its lease; whether there was one."""
    return os.getxattr(file, "user.volfs.release") == b"1"


def leases(volume: Volume) -> int:
    """How many there are."""
    count: int = volume.status()["leases"]["count"]
    return count


def flood(volume: Volume, count: int = 40) -> None:
    """Read so much, of what the kernel has no pages, that everything that can leave the cache does."""
    files = {f"flood{seed}": noise(M, seed) for seed in itertools.islice(_seeds, count)}
    for name, data in files.items():
        (volume.backing / name).write_bytes(data)
    for name, data in files.items():  # by now they are old enough to be kept
        assert (volume.mountpoint / name).read_bytes() == data


def right(file: int, data: bytes) -> bool:
    """Whether an open file has exactly these bytes, not from memory."""
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    digest = hashlib.sha256()
    for offset in range(0, len(data), M):
        digest.update(os.pread(file, M, offset))
    return digest.digest() == hashlib.sha256(data).digest()


def test_path_of_a_cold_file(make_volume: Make) -> None:
    """R6: one attribute fetches, verifies and leases; the file is the version, and nobody writes it."""
    volume = make_volume(mode="cached")
    small, large = noise(150 * K), noise(9 * M + 5, 2)
    (volume.backing / "small").write_bytes(small)
    (volume.backing / "large").write_bytes(large)
    volume.mount()
    for name, data in ("small", small), ("large", large):
        path = path_of(volume.mountpoint / name)
        assert path.is_relative_to(volume.cache_dir)
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o400
        assert path_of(volume.mountpoint / name) == path
    assert volume.status()["store_read_bytes"] == len(small) + len(large)
    assert volume.status()["leases"]["count"] == 2
    assert volume.status()["leases"]["bytes"] >= len(small) + len(large)
    assert release(volume.mountpoint / "small")
    assert not release(volume.mountpoint / "small")
    assert (volume.mountpoint / "small").read_bytes() == small
    assert volume.status()["store_read_bytes"] == len(small) + len(large)


def test_replaced_file_has_a_new_path(make_volume: Make) -> None:
    """R6, R1: the path is of the version that the store has now; the old one, open, keeps its bytes."""
    volume = make_volume(mode="cached")
    old, new, newer = noise(3 * M), noise(2 * M, 2), noise(3 * M, 3)
    file = volume.mountpoint / "f"
    (volume.backing / "f").write_bytes(old)
    volume.mount()
    opened = os.open(path_of(file), os.O_RDONLY)
    (volume.backing / "n").write_bytes(new)
    os.rename(volume.backing / "n", volume.backing / "f")
    assert path_of(file).read_bytes() == new
    assert right(opened, old)
    again = os.open(path_of(file), os.O_RDONLY)
    file.write_bytes(newer)  # in place at the store or not: a commit
    volume.settle()
    assert path_of(file).read_bytes() == newer
    assert right(again, new)
    assert right(opened, old)
    for descriptor in (opened, again):
        os.close(descriptor)


def test_changed_in_place(make_volume: Make) -> None:
    """R6, R3: a write into the store's file changes no byte of what was handed out."""
    volume = make_volume(mode="cached")
    data = noise(3 * M)
    (volume.backing / "f").write_bytes(data)
    volume.mount()
    opened = os.open(path_of(volume.mountpoint / "f"), os.O_RDONLY)
    through = os.open(volume.mountpoint / "f", os.O_RDONLY)
    with (volume.backing / "f").open("r+b") as file:
        file.seek(M)
        file.write(b"other bytes")
    changed = (volume.backing / "f").read_bytes()
    # By a descriptor, so that no lookup of the kernel asks the store.
    assert Path(os.fsdecode(os.getxattr(through, "user.volfs.path"))).read_bytes() == changed
    assert path_of(volume.mountpoint / "f").read_bytes() == changed
    assert right(opened, data)
    for descriptor in (opened, through):
        os.close(descriptor)


def test_leased_files_stay_and_open_ones_keep_their_bytes(make_volume: Make) -> None:
    """R6, B1: eviction takes no leased file; later the file goes whole, and never a block under a reader."""
    volume = make_volume("--cache-size", "32MiB", mode="cached")
    data = noise(12 * M)
    (volume.backing / "f").write_bytes(data)
    volume.mount()
    path = path_of(volume.mountpoint / "f")
    opened = os.open(path, os.O_RDONLY)
    flood(volume)
    assert path.exists()
    assert right(opened, data)
    assert volume.status()["cache"]["used_bytes"] <= 32 * M
    assert release(volume.mountpoint / "f")
    flood(volume)
    eventually(lambda: not path.exists(), what="the file has left")
    assert right(opened, data)
    assert path_of(volume.mountpoint / "f").read_bytes() == data
    os.close(opened)


def test_what_was_handed_out_is_known_after_a_restart(make_volume: Make) -> None:
    """R6, R5: also a daemon that knows of no lease takes no block away from a file that somebody reads."""
    volume = make_volume("--cache-size", "32MiB", mode="cached")
    data = noise(12 * M)
    (volume.backing / "f").write_bytes(data)
    volume.mount()
    file = volume.mountpoint / "f"
    path = path_of(file)
    opened = os.open(path, os.O_RDONLY)
    volume.unmount()
    volume.remount()
    assert path_of(file) == path
    assert volume.status()["store_read_bytes"] == 0
    assert release(file)
    volume.kill()
    volume.remount()
    with file.open("rb") as held:  # in use, so that it cannot go whole
        assert held.read(10) == data[:10]
        flood(volume)
        assert right(opened, data)
    assert path_of(file).read_bytes() == data
    os.close(opened)


def test_a_lease_ends(make_volume: Make) -> None:
    """R6a: a lease lasts as long as the mount says, from the last time that it was asked for."""
    volume = make_volume("--lease", "2", mode="cached")
    (volume.backing / "f").write_bytes(noise(M))
    volume.mount()
    path = path_of(volume.mountpoint / "f")
    assert leases(volume) == 1
    eventually(lambda: not leases(volume), within=20, what="the lease ended")
    assert path.read_bytes() == noise(M)


def test_a_killed_client_holds_nothing_for_long(make_volume: Make) -> None:
    """R6a: the lease of a client that was killed ends like any other."""
    volume = make_volume("--lease", "2", mode="cached")
    (volume.backing / "f").write_bytes(noise(M))
    volume.mount()
    source = (
        "import os, sys\n"
        "fd = os.open(os.getxattr(sys.argv[1], 'user.volfs.path'), os.O_RDONLY)\n"
        "print(len(os.read(fd, 99)), flush=True); sys.stdin.read()"
    )
    client = in_process(source, volume.mountpoint / "f")
    assert client.stdout is not None
    assert client.stdout.readline() == "99\n"
    assert leases(volume) == 1
    os.kill(client.pid, signal.SIGKILL)
    client.communicate()
    eventually(lambda: not leases(volume), within=20, what="the lease ended")
    os.getxattr(volume.mountpoint, "user.volfs.evict")
    eventually(lambda: volume.status()["cache"]["used_bytes"] == 0, what="nothing holds it")


def test_leases_are_bounded(make_volume: Make) -> None:
    """R6a, B1: all leases together hold at most half of the cache; the mount itself goes on serving."""
    volume = make_volume("--cache-size", "32MiB", mode="cached")
    for i in range(5):
        (volume.backing / f"f{i}").write_bytes(noise(4 * M, i))
    (volume.backing / "huge").write_bytes(noise(20 * M, 9))
    volume.mount()
    for i in range(3):
        assert path_of(volume.mountpoint / f"f{i}").read_bytes() == noise(4 * M, i)
    assert error_of(path_of, volume.mountpoint / "f3") == "ENOSPC"
    assert error_of(path_of, volume.mountpoint / "huge") == "ENOSPC"
    assert leases(volume) == 3
    assert (volume.mountpoint / "f3").read_bytes() == noise(4 * M, 3)
    assert release(volume.mountpoint / "f0")
    assert path_of(volume.mountpoint / "f3").read_bytes() == noise(4 * M, 3)


def test_damage_is_not_handed_out(make_volume: Make) -> None:
    """R6, R4: with each new lease every byte is verified; what is damaged is fetched into another file."""
    volume = make_volume(mode="cached")
    data = noise(5 * M)
    (volume.backing / "f").write_bytes(data)
    volume.mount()
    file = volume.mountpoint / "f"
    path = path_of(file)
    opened = os.open(path, os.O_RDONLY)
    assert release(file)
    path.chmod(0o600)
    with path.open("r+b") as cache_file:
        cache_file.seek(2 * M)
        cache_file.write(b"damage")
    path.chmod(0o400)
    damaged = os.pread(opened, 16, 2 * M)
    assert path_of(file).read_bytes() == data
    assert os.pread(opened, 16, 2 * M) == damaged  # nobody rewrites what was handed out
    assert file.read_bytes() == data
    volume.unmount()
    volume.remount()
    assert path_of(file).read_bytes() == data
    os.close(opened)


def test_what_is_not_handed_out(make_volume: Make) -> None:
    """R6: uncommitted, empty and other files have no path, nor has anything on a mount without a cache."""
    volume = make_volume(mode="cached")
    (volume.backing / "f").write_bytes(noise(M))
    (volume.backing / "empty").touch()
    volume.mount()
    with (volume.mountpoint / "w").open("wb", buffering=0) as written:
        written.write(b"not committed")
        assert error_of(path_of, volume.mountpoint / "w") == "ENODATA"
    volume.settle()
    assert path_of(volume.mountpoint / "w").read_bytes() == b"not committed"
    assert error_of(path_of, volume.mountpoint / "empty") == "ENODATA"
    assert error_of(path_of, volume.mountpoint) == "ENODATA"
    assert error_of(path_of, volume.mountpoint / "nosuch") == "ENOENT"
    if os.geteuid() == 0:
        assert as_user(NOBODY, lambda: path_of(volume.mountpoint / "f")) == "EACCES"
    local = make_volume()
    (local.backing / "f").write_bytes(noise(M))
    local.mount()
    assert error_of(path_of, local.mountpoint / "f") == "EOPNOTSUPP"


def test_many_leases_keep_no_descriptors(make_volume: Make) -> None:
    """R6a: a leased file that nobody else uses costs the daemon no descriptor."""
    volume = make_volume(mode="cached")
    for i in range(300):
        (volume.backing / f"f{i}").write_bytes(noise(1000, i))
    volume.mount()
    before = volume.descriptors()
    paths = [path_of(volume.mountpoint / f"f{i}") for i in range(300)]
    assert leases(volume) == 300
    assert volume.descriptors() < before + 50
    assert [path.read_bytes() for path in paths] == [noise(1000, i) for i in range(300)]
