"""One bad request costs that request, and nothing grows: injected exceptions, memory, descriptors, odd input
(B5).
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import VolumeFactory
from tests.mount import mounts
from tests.mount.calls import error_of
from tests.mount.volume import PLAIN, Volume, eventually

EXCEPTIONS = [
    *(
        "KeyError",
        "ValueError",
        "OSError",
        "RuntimeError",
        "AssertionError",
        "MemoryError",
        "UnicodeDecodeError",
    ),
    *("ExceptionGroup", "StopIteration", "TimeoutError", "RecursionError", "ZeroDivisionError"),
]

Faulty = tuple[Volume, Path]


@pytest.fixture(scope="module", params=["local", "cached"])
def faulty(request: pytest.FixtureRequest, volumes_base: Path, watchdog: object) -> Iterator[Faulty]:
    """A mount by the faulty daemon, and the directory that says what fails next."""
    if PLAIN:
        pytest.fail("this module is about the daemon; leave it out of a plain run")
    factory = VolumeFactory(volumes_base)
    # One process may come to a mode for a second time: xdist hands tests on in any order.
    faults = Path(tempfile.mkdtemp(prefix=f"faults-{request.param}-", dir=volumes_base))
    volume = factory(mode=request.param, environment={"VOLFS_TEST_FAULTS": str(faults)})
    volume.mount_by(Path(__file__).with_name("faulty_daemon.py"))
    yield volume, faults
    assert factory.finish() == []


def requests(volume: Volume) -> dict[str, Callable[[], object]]:
    """A call for each method of the file system, which asks the kernel for nothing else first that could
    fail.
    """
    here, count = volume.mountpoint, len(os.listdir(volume.backing))
    name = here / f"n{count}-{threading.get_native_id()}"
    kept, directory = here / "kept", here / "directory"

    def with_handle(path: Path, flags: int, call: Callable[[int], object]) -> Callable[[], object]:
        def opened() -> None:
            handle = os.open(path, flags | os.O_CREAT if path != directory else flags)
            try:
                call(handle)
            finally:
                os.close(handle)

        return opened

    return {
        "lookup": lambda: os.stat(name),
        "mkdir": lambda: os.mkdir(name),
        "mknod": lambda: os.mkfifo(name),
        "symlink": lambda: os.symlink("x", name),
        "link": lambda: os.link(kept, name),
        "rename": lambda: os.rename(kept, name),
        "unlink": lambda: os.unlink(kept),
        "rmdir": lambda: os.rmdir(directory),
        "setattr": lambda: os.chmod(kept, 0o600),
        "getxattr": lambda: os.getxattr(kept, "user.x"),
        "setxattr": lambda: os.setxattr(kept, "user.x", b"1"),
        "removexattr": lambda: os.removexattr(kept, "user.x"),
        "listxattr": lambda: os.listxattr(kept),
        "statfs": lambda: os.statvfs(here),
        "open": lambda: os.close(os.open(kept, os.O_RDONLY)),
        "create": lambda: os.close(os.open(name, os.O_CREAT | os.O_WRONLY)),
        "read": with_handle(kept, os.O_RDONLY | os.O_DIRECT, lambda h: os.preadv(h, [bytearray(4096)], 0)),
        "write": with_handle(kept, os.O_WRONLY, lambda h: os.write(h, b"x")),
        "flush": with_handle(kept, os.O_WRONLY, lambda h: os.close(os.dup(h))),
        "fsync": with_handle(kept, os.O_WRONLY, os.fsync),
        "opendir": lambda: os.listdir(directory),
        "readdir": lambda: os.listdir(directory),
        "fsyncdir": with_handle(directory, os.O_RDONLY | os.O_DIRECTORY, os.fsync),
    }


METHODS = [
    *(
        "lookup",
        "mkdir",
        "mknod",
        "symlink",
        "link",
        "rename",
        "unlink",
        "rmdir",
        "setattr",
        "getxattr",
        "setxattr",
    ),
    *("removexattr", "listxattr", "statfs", "open", "create", "read", "write", "flush", "fsync", "opendir"),
    *("readdir", "fsyncdir"),
]


@pytest.mark.parametrize("method", METHODS)
def test_exception_in_a_request(faulty: Faulty, guarded: None, method: str) -> None:
    """B5: any exception in a handler is EIO for that request; the next one is served, and the status counts
    it.
    """
    volume, faults = faulty
    (volume.mountpoint / "kept").write_bytes(b"kept" * 2000)
    (volume.mountpoint / "directory").mkdir(exist_ok=True)
    call = requests(volume)[method]
    for exception in (
        EXCEPTIONS if method in ("lookup", "open", "write") else EXCEPTIONS[:2] + EXCEPTIONS[7:8]
    ):
        before = volume.status()["errors"]
        (faults / f"vfs.{method}").write_text(exception)
        assert error_of(call) == "EIO", exception
        assert not (faults / f"vfs.{method}").exists()
        assert volume.is_alive()
        assert volume.status()["errors"] > before
    assert (volume.mountpoint / "kept").read_bytes()[-4:] == b"kept"


@pytest.mark.parametrize("method", ["vfs.release", "vfs.releasedir", "vfs.forget", "vfs.getattr"])
def test_exception_where_no_reply_carries_it(faulty: Faulty, guarded: None, method: str) -> None:
    """An exception in release, releasedir or forget, or in a getattr that may not come, leaves the mount as
    it was.
    """
    volume, faults = faulty
    for exception in EXCEPTIONS:
        (faults / method).write_text(exception)
        error_of(lambda: (volume.mountpoint / "r").write_text("x"))
        error_of(os.listdir, volume.mountpoint)
        Path("/proc/sys/vm/drop_caches").write_text("2")
        error_of(os.stat, volume.mountpoint / "r")
        if method in ("vfs.release", "vfs.releasedir"):  # release comes after close returned
            eventually(lambda: not (faults / method).exists(), 5, f"{exception} was raised")
        assert volume.is_alive()
    (faults / method).unlink(missing_ok=True)
    (volume.mountpoint / "r").write_text("y")
    volume.settle()
    assert (volume.backing / "r").read_text() == "y"


@pytest.mark.parametrize(
    "task", ["changes.happened", "changes.poll", "files.commit_quiet", "changes.everything"]
)
def test_exception_in_a_background_task(faulty: Faulty, guarded: None, task: str) -> None:
    """A background task that fails starts again: changes by hand are still seen, and commits still go out."""
    volume, faults = faulty
    for number, exception in enumerate(EXCEPTIONS[:3] + EXCEPTIONS[7:8]):
        path = volume.backing / f"b{number}"
        path.write_text("one")
        eventually(lambda p=path: (volume.mountpoint / p.name).stat().st_size == 3, 25, "it is seen")
        (faults / task).write_text(exception)
        path.write_text("three")
        error_of(volume.refresh)
        assert volume.is_alive()
        (faults / task).unlink(missing_ok=True)
        path.write_text("finally")
        eventually(lambda p=path: (volume.mountpoint / p.name).stat().st_size == 7, 25, "the change is seen")
        (volume.mountpoint / "w").write_text(exception)
        volume.settle()
        assert (volume.backing / "w").read_text() == exception


def test_failed_commit_is_told_and_tried_again(faulty: Faulty, guarded: None) -> None:
    """An exception in a commit reaches fsync, the bytes stay staged, and a later commit publishes them."""
    volume, faults = faulty
    with (volume.mountpoint / "c").open("wb", 0) as file:
        file.write(b"precious")
        (faults / "vfs.fsync").write_text("RuntimeError")
        assert error_of(os.fsync, file.fileno()) == "EIO"
        assert (volume.mountpoint / "c").read_bytes() == b"precious"
    volume.settle()
    assert (volume.backing / "c").read_bytes() == b"precious"


def test_odd_requests(make_volume: Callable[..., Volume]) -> None:
    """Unreadable files, odd names and long paths get an errno each, and the mount goes on."""
    volume = make_volume().mount()
    here = volume.mountpoint
    (volume.backing / "f").write_text("x")
    assert error_of(os.stat, os.fsencode(here) + b"/\xff\xfe") == "ENOENT"
    assert error_of(os.stat, here / "a\nb") == "ENOENT"
    assert error_of(os.stat, here / ("x" * 256)) == "ENAMETOOLONG"
    assert error_of(os.stat, here / "f/x") == "ENOTDIR"
    assert error_of(os.truncate, here / "f", 1 << 62) == "EFBIG"
    assert error_of(os.getxattr, here / "f", "user." + "x" * 200) == "ENODATA"
    assert error_of(os.setxattr, here / "f", "user.big", bytes(60_000)) in ("ENOSPC", "E2BIG", "")
    assert (here / "f").read_text() == "x"


def test_store_that_refuses_a_commit(make_volume: Callable[..., Volume]) -> None:
    """fsync gives the store's own errno, the bytes stay readable, and go out once the store takes them
    (W4).
    """
    import subprocess

    volume = make_volume().mount()
    (volume.mountpoint / "d").mkdir()
    with (volume.mountpoint / "d/f").open("wb", 0) as file:
        file.write(b"first")
        os.fsync(file.fileno())
        subprocess.run(["chattr", "+i", str(volume.backing / "d")], check=True, timeout=20)
        try:
            file.write(b"second")
            assert error_of(os.fsync, file.fileno()) == "EPERM"
            assert (volume.mountpoint / "d/f").read_bytes() == b"firstsecond"
            assert (volume.backing / "d/f").read_bytes() == b"first"
            assert volume.status()["commit"]["last_error"]
        finally:
            subprocess.run(["chattr", "-i", str(volume.backing / "d")], check=True, timeout=20)
        os.fsync(file.fileno())
    assert (volume.backing / "d/f").read_bytes() == b"firstsecond"


@pytest.mark.timeout(200)
@pytest.mark.parametrize("mode", [pytest.param("local", marks=pytest.mark.long), "cached"])
def test_memory_and_descriptors_stay_flat(make_volume: Callable[..., Volume], mode: str) -> None:
    """300,000 stats and opens of 3,000 files, with the kernel forgetting in between: tables shrink, memory
    stays.
    """
    if PLAIN:
        return
    volume = make_volume(mode=mode)
    for i in range(3000):
        path = volume.backing / f"d{i % 30}" / f"f{i}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x" * 100)
    volume.mount()
    paths = [volume.mountpoint / f"d{i % 30}" / f"f{i}" for i in range(3000)]
    drop = Path("/proc/sys/vm/drop_caches")
    resident, descriptors = [], []
    rounds = 50 if mode == "local" else 10
    for _ in range(rounds):
        for path in paths:
            os.stat(path)
            os.close(os.open(path, os.O_RDONLY))
        full = volume.status()["nodes"]
        drop.write_text("2")
        eventually(lambda f=full: volume.status()["nodes"] < f // 4, 10, "FORGET shrinks the table")
        resident.append(volume.resident())
        descriptors.append(volume.descriptors())
    assert volume.status()["handles"] == 0
    assert resident[-1] - resident[1] < 8 << 20, resident
    assert max(descriptors[1:]) - min(descriptors[1:]) <= 8, descriptors


@pytest.mark.parametrize("mode", ["local", "cached", "background"])
def test_rounds_of_create_and_delete_leak_nothing(make_volume: Callable[..., Volume], mode: str) -> None:
    """Twenty rounds of 100 reads, creates and deletes: staging empty, descriptors flat, nodes flat."""
    if PLAIN:
        return
    volume = make_volume(mode=mode).mount()
    here = volume.mountpoint
    for i in range(100):
        (volume.backing / f"l{i}").write_text("l")
    counts = []
    for _ in range(20):
        for i in range(100):
            (here / f"l{i}").read_text()
            (here / f"k{i}").write_text("x")
            (here / f"k{i}").unlink()
        volume.settle()
        counts.append(volume.descriptors())
    assert volume.leftovers() == []
    assert max(counts[1:]) - min(counts[1:]) <= 8, counts
    eventually(lambda: volume.status()["nodes"] <= 110, 5, "deleted files are forgotten")


def test_killed_daemon_keeps_what_was_acknowledged(make_volume: Callable[..., Volume]) -> None:
    """kill -9 with closed and synced files not yet committed: the next mount publishes them unasked (W6)."""
    if PLAIN:
        return
    volume = make_volume("--commit-interval", "60", mode="cached-background").mount()
    for i in range(50):
        (volume.mountpoint / f"f{i}").write_bytes(bytes([i]) * 10_000)
    with (volume.mountpoint / "synced").open("wb", 0) as file:
        file.write(b"synced")
        os.fsync(file.fileno())
    volume.kill()
    assert error_of(os.listdir, volume.mountpoint) in ("ENOTCONN", "ECONNABORTED")
    volume.remount()
    volume.settle()
    for i in range(50):
        assert (volume.backing / f"f{i}").read_bytes() == bytes([i]) * 10_000
    assert (volume.backing / "synced").read_bytes() == b"synced"
    assert mounts.is_mounted(volume.mountpoint)


def test_cache_survives_a_restart(make_volume: Callable[..., Volume]) -> None:
    """After a remount unchanged data costs no byte of the store, and data changed while down is not stale
    (R5).
    """
    if PLAIN:
        return
    volume = make_volume(mode="cached")
    data = os.urandom(4 << 20)
    for name in ("same", "changed"):
        (volume.backing / name).write_bytes(data)
    threading.Event().wait(3)  # the files must not be racily clean when they are read
    volume.mount()
    for name in ("same", "changed"):
        assert (volume.mountpoint / name).read_bytes() == data
    volume.unmount()
    (volume.backing / "changed").write_bytes(data[::-1])
    volume.remount()
    assert (volume.mountpoint / "same").read_bytes() == data
    assert volume.status()["store_read_bytes"] == 0
    assert (volume.mountpoint / "changed").read_bytes() == data[::-1]
