"""Copies that end early, by errors, signals or kill -9: what they leave, and how the next one goes on."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import volfs_client
from volfs_client import mount, temporary
from volfs_client.copying import backlog, crew, tree

from tests.client.test_copying import shown

_SOURCE = str(Path(volfs_client.__file__).parents[1])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_no_space_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """C24: The first such error stops the rest, says so, and leaves nothing half; a later call goes on."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    for name in range(200):  # all in one batch, so that all are found before the first is copied
        (source / f"{name:03}").write_bytes(b"x" * 100)
    room = 20 * 100
    lock = threading.Lock()
    pwrite = os.pwrite

    def full(fd: int, data: bytes, offset: int) -> int:
        nonlocal room
        with lock:
            room -= len(data)
            left = room
        if left < 0:
            raise OSError(number, os.strerror(number))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(volfs_client.CopyFailed, match=rf"stopped: {os.strerror(number)} \(.*b/") as caught:
        volfs_client.copy_tree(source, target, jobs=4)
    assert 1 <= len(caught.value.failed) <= 4
    there = len(os.listdir(target))
    assert 20 - 4 < there <= 20  # what is written when the work stops is not published
    assert f"{there} files were copied, {200 - there} were not" in str(caught.value)
    assert not [name for name in os.listdir(target) if temporary.is_ours(name)]
    monkeypatch.undo()
    counts = volfs_client.copy_tree(source, target)
    assert (counts.files, counts.unchanged) == (200 - there, there)
    assert shown(target) == shown(source)


def test_a_copy_cut_short_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C21: A store that loses the end of a file without saying so: EIO, and no file of that name."""
    (tmp_path / "a").write_bytes(b"x" * 100)
    close = os.close

    def lossy(fd: int) -> None:
        if ".volfs-tmp" in os.readlink(f"/proc/self/fd/{fd}"):
            os.ftruncate(fd, 60)
        close(fd)

    monkeypatch.setattr(os, "close", lossy)
    with pytest.raises(volfs_client.CopyFailed, match="60 of 100 bytes"):
        volfs_client.copy_tree(tmp_path / "a", tmp_path / "to/b")
    assert os.listdir(tmp_path / "to") == []


def test_an_error_at_close_is_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C21: What a mount says at close fails the file; the one that was there stays."""
    (tmp_path / "a").write_bytes(b"new")
    (tmp_path / "b").write_bytes(b"old")
    close = os.close

    def refusing(fd: int) -> None:
        ours = ".volfs-tmp" in os.readlink(f"/proc/self/fd/{fd}")
        close(fd)
        if ours:
            raise OSError(errno.EDQUOT, "quota")

    monkeypatch.setattr(os, "close", refusing)
    with pytest.raises(volfs_client.CopyFailed) as caught:
        volfs_client.copy_tree(tmp_path / "a", tmp_path / "b")
    assert caught.value.failed[0][1].errno == errno.EDQUOT
    assert (tmp_path / "b").read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_an_error_at_close_of_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C21: On a mount a new file has its name before it is closed; it has none if that fails."""
    (tmp_path / "a").mkdir()
    for name in ("bad", "good"):
        (tmp_path / "a" / name).write_bytes(b"new")
    close = os.close
    closed: list[str] = []

    def refusing(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        close(fd)
        if path.startswith(str(tmp_path / "to/")):
            closed.append(os.path.basename(path))
            if path.endswith("bad"):
                raise OSError(errno.EIO, "the store")

    monkeypatch.setattr(os, "close", refusing)
    monkeypatch.setattr(mount, "is_volfs", lambda path: str(path).startswith(str(tmp_path / "to")))
    with pytest.raises(volfs_client.CopyFailed) as caught:
        volfs_client.copy_tree(tmp_path / "a", tmp_path / "to")
    assert sorted(closed) == ["bad", "good"]
    assert [(path, error.errno) for path, error in caught.value.failed] == [
        (str(tmp_path / "a/bad"), errno.EIO)
    ]
    assert os.listdir(tmp_path / "to") == ["good"]


_SLOW = """
import os, sys, time
from volfs_client.copying import transfer
from volfs_client import copy_tree
pwrite = os.pwrite
def slow(fd, data, offset):
    print("writing", flush=True)
    time.sleep(3600) if offset else None
    return pwrite(fd, data, offset)
os.pwrite = slow
transfer.CHUNK_BYTES = 1
import volfs_client.copying.crew as crew
crew.CHUNK_BYTES = 10
copy_tree(sys.argv[1], sys.argv[2], jobs=2)
"""


def test_a_killed_run_is_gone_on_with(tmp_path: Path) -> None:
    """Only temporary names are left by kill -9; the next run removes them, but not those of the living."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    (source / "small").write_bytes(b"s" * 10)
    (source / "large").write_bytes(b"l" * 100)
    killed = subprocess.Popen(
        [sys.executable, "-c", _SLOW, str(source), str(target)],
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _SOURCE},
    )  # fmt: skip
    assert killed.stdout is not None
    for _ in range(3):  # the whole of one, and the second piece of the other
        killed.stdout.readline()
    deadline = time.monotonic() + 10
    while "small" not in os.listdir(target) and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    (half,) = (name for name in os.listdir(target) if temporary.is_ours(name))
    assert sorted(os.listdir(target)) == [half, "small"]
    (target / "own").write_bytes(b"stays")

    volfs_client.copy_tree(source / "small", target / "small")
    assert half in os.listdir(target)  # its owner lives
    killed.kill()
    killed.wait()
    killed.stdout.close()
    counts = volfs_client.copy_tree(source, target)

    assert (counts.files, counts.unchanged) == (1, 1)
    assert sorted(os.listdir(target)) == ["large", "own", "small"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, LookupError])
def test_interrupted_leaves_nothing_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """C22: Ctrl-C, or an error in the report, ends the work; no temporary file and no thread is left."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    for number in range(100):
        (source / str(number)).write_bytes(b"x" * 1000)
    writes = iter(range(1000))
    ended = threading.Event()
    pwrite, stop = os.pwrite, crew.Crew.stop

    def waiting(fd: int, data: bytes, offset: int) -> int:
        if next(writes) >= 10:
            ended.wait(20)
        return pwrite(fd, data, offset)

    def ending(self: crew.Crew, timeout_s: float) -> None:
        self._stopped = True
        ended.set()
        stop(self, timeout_s)

    def report(counts: volfs_client.CopyCounts) -> None:
        if counts.files == 10:
            signal.raise_signal(signal.SIGINT) if error is KeyboardInterrupt else None
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(tree, "_REPORT_S", 0.0)
        patch.setattr(os, "pwrite", waiting)
        patch.setattr(crew.Crew, "stop", ending)
        with pytest.raises(error):
            volfs_client.copy_tree(source, target, jobs=4, progress=report)
    assert not [t for t in threading.enumerate() if t.name.startswith("copy-")]
    assert len(os.listdir(target)) == 10
    assert volfs_client.copy_tree(source, target).unchanged == 10
    assert shown(target) == shown(source)


def test_foreign_temporary_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What another machine made is abandoned after a day of silence; a process that lives is never dead."""
    ours = temporary.name()
    (tmp_path / ours).touch()
    os.utime(tmp_path / ours, (0, 0))
    assert not temporary.is_abandoned(ours, os.stat(tmp_path / ours))
    other = temporary.name()
    temporary.done(other)
    assert temporary.is_abandoned(other, os.stat(tmp_path / ours))
    foreign = ours.replace(ours.split("-")[2], "0" * 16)
    fresh = os.stat(tmp_path / ours)
    assert not temporary.is_abandoned(foreign, fresh)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 86_500)
    assert temporary.is_abandoned(foreign, fresh)
    assert not temporary.is_abandoned(".volfs-tmp-mine", fresh)
    assert temporary.name() != temporary.name()
    pid = ours.split("-")[3]
    assert temporary.is_abandoned(ours.replace(f"-{pid}-", f"-{2**22 + 1}-"), fresh)


def test_an_error_in_one_range_ends_a_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other ranges stop, the file is named once, and nothing of it is left; others are copied."""
    monkeypatch.setattr(backlog, "RANGE_BYTES", 1 << 20)
    monkeypatch.setattr(crew, "RANGE_BYTES", 1 << 20)
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(9 << 20))
    (source / "other").write_bytes(b"other")
    pwrite = os.pwrite

    def failing(fd: int, data: bytes, offset: int) -> int:
        if offset == 5 << 20:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return pwrite(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", failing)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(volfs_client.CopyFailed) as caught:
        volfs_client.copy_tree(source, target, jobs=3)
    assert [(os.path.basename(path), error.errno) for path, error in caught.value.failed] == [
        ("large", errno.EIO)
    ]
    assert not caught.value.stopped
    assert os.listdir(target) == ["other"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_large_file_that_nobody_has_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was opened when the work ended: nothing of it is left, no descriptor either."""
    monkeypatch.setattr(crew, "RANGE_BYTES", 1 << 10)
    (tmp_path / "large").write_bytes(bytes(1 << 12))
    put, start = backlog.Backlog.put_large, crew.Crew.start
    started: list[crew.Crew] = []

    def starting(self: crew.Crew) -> None:
        started.append(self)
        start(self)

    def ending(self: backlog.Backlog, large: backlog.Large) -> None:
        put(self, large)
        started[0]._stopped = True

    monkeypatch.setattr(crew.Crew, "start", starting)
    monkeypatch.setattr(backlog.Backlog, "put_large", ending)
    before = len(os.listdir("/proc/self/fd"))
    volfs_client.copy_tree(tmp_path / "large", tmp_path / "to/large", jobs=2)
    assert os.listdir(tmp_path / "to") == []
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_large_file_that_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C21: Ended between two ranges, nothing of it is left, no descriptor either."""
    monkeypatch.setattr(backlog, "RANGE_BYTES", 1 << 20)
    monkeypatch.setattr(crew, "RANGE_BYTES", 1 << 20)
    monkeypatch.setattr(tree, "_REPORT_S", 0.0)
    for name in ("one", "two"):
        (tmp_path / "a" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "a" / name).write_bytes(os.urandom(8 << 20))
    before = len(os.listdir("/proc/self/fd"))

    def report(counts: volfs_client.CopyCounts) -> None:
        if counts.bytes:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        volfs_client.copy_tree(tmp_path / "a", tmp_path / "b", jobs=2, progress=report)
    assert not [name for name in os.listdir(tmp_path / "b") if temporary.is_ours(name)]
    assert len(os.listdir("/proc/self/fd")) == before
