"""Two nodes over one backing: who wins, what is never silent, and that nothing waits for anybody."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import Area
from tests.mount.calls import error_of, in_process
from tests.mount.volume import PLAIN, eventually

pytestmark = pytest.mark.modes("local", "cached")


def conflicts(area: Area) -> list[Path]:
    return sorted(area.back.glob("*.conflict-*"))


def test_close_publishes(area: Area) -> None:
    """What was closed on one mount is read at once on the other, 100 times over, create and overwrite."""
    for i in range(100):
        (area.here / "f").write_text(f"here {i}")
        assert (area.there / "f").read_text() == f"here {i}"
        (area.there / "f").write_text(f"there {i}")
        assert (area.here / "f").read_text() == f"there {i}"
    assert area.volume.status()["conflicts"] == 0


def test_fsync_publishes_while_open(area: Area) -> None:
    """After fsync the other mount has the bytes though the writer keeps the file open (W4)."""
    with (area.here / "f").open("wb", 0) as writer:
        writer.write(b"one")
        os.fsync(writer.fileno())
        assert (area.there / "f").read_bytes() == b"one"
        writer.write(b"two")
        os.fsync(writer.fileno())
        assert (area.there / "f").read_bytes() == b"onetwo"


def test_commit_verb_publishes_while_open(area: Area) -> None:
    """The commit of one file, and of a directory, publishes what is open and written."""
    if PLAIN:
        return
    with (area.here / "f").open("wb", 0) as f, (area.here / "g").open("wb", 0) as g:
        f.write(b"f1")
        g.write(b"g1")
        area.volume.commit(area.here / "f")
        assert (area.there / "f").read_bytes() == b"f1"
        area.volume.commit(area.here)
        assert (area.there / "g").read_bytes() == b"g1"


def test_change_under_a_dirty_file_makes_a_conflict(area: Area) -> None:
    """The store's version changed under an append: it stays, ours lies beside it, and the status counts it
    (W7).
    """
    if PLAIN:
        return
    path = area.here / "c"
    path.write_text("base\n")
    area.settle()
    before = area.volume.status()["conflicts"]
    with path.open("a") as writer:
        writer.write("local\n")
        writer.flush()
        (area.back / "c").write_text("remote\n")
    area.settle()

    assert (area.back / "c").read_text() == "remote\n"
    assert [p.read_text() for p in conflicts(area)] == ["base\nlocal\n"]
    assert area.volume.status()["conflicts"] == before + 1
    assert path.read_text() == "remote\n"
    assert conflicts(area)[0].name in os.listdir(area.here)


def test_truncating_writer_replaces(area: Area) -> None:
    """A file opened with O_TRUNC replaces what is there, also a version that came meanwhile (W7)."""
    path = area.here / "c"
    path.write_text("base")
    area.settle()
    with path.open("w") as writer:
        writer.write("ours")
        writer.flush()
        if not PLAIN:
            (area.back / "c.new").write_text("remote")
            (area.back / "c.new").rename(area.back / "c")
    area.settle()
    assert (area.back / "c").read_text() == "ours"
    assert conflicts(area) == []


def test_file_deleted_under_a_dirty_one(area: Area) -> None:
    """W7a: the name vanished in the store under an append: our bytes are published, never lost."""
    if PLAIN:
        return
    path = area.here / "c"
    path.write_text("base\n")
    area.settle()
    with path.open("a") as writer:
        writer.write("local\n")
        writer.flush()
        (area.back / "c").unlink()
    area.settle()
    assert [p.read_text() for p in area.back.iterdir()] == ["base\nlocal\n"]


def test_exclusive_create_has_one_winner(area: Area) -> None:
    """Two processes on two mounts race for 100 names with O_EXCL: each name has exactly one winner (W10)."""
    source = (
        "import os,sys\nwon=[]\nsys.stdin.readline()\n"
        "for i in range(100):\n"
        "    try: os.close(os.open(f'{sys.argv[1]}/n{i}',os.O_CREAT|os.O_EXCL|os.O_WRONLY)); won.append(i)\n"
        "    except FileExistsError: pass\n"
        "print(*won)"
    )
    racers = [in_process(source, area.here), in_process(source, area.there)]
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    won = [racer.communicate()[0].split() for racer in racers]
    assert sorted(map(int, won[0] + won[1])) == list(range(100))


def test_missing_names_do_not_stick(area: Area) -> None:
    """A name found missing is found when it comes, by hand or on this mount, and missing again when it
    goes.
    """
    assert not (area.here / "neg").exists()
    (area.back / "neg").write_text("hi")
    assert (area.here / "neg").read_text() == "hi"
    assert not (area.here / "loc").exists()
    (area.here / "loc").write_text("hi")
    assert (area.here / "loc").read_text() == "hi"
    (area.back / "neg").unlink()
    assert error_of((area.here / "neg").read_text) == "ENOENT"
    eventually(lambda: not (area.here / "neg").exists(), area.volume.window, "stat says missing")


def test_dirty_and_open_files_are_listed(area: Area) -> None:
    """A listing has what others made and what is open and not committed here."""
    (area.here / "e").mkdir()
    assert os.listdir(area.here / "e") == []
    (area.back / "e/new").touch()
    eventually(lambda: os.listdir(area.here / "e") == ["new"], area.volume.window, "the new file")
    with (area.here / "e/open").open("w") as writer:
        writer.write("x")
        assert sorted(os.listdir(area.here / "e")) == ["new", "open"]
        with os.scandir(area.here / "e") as entries:
            assert {e.name: e.stat().st_size for e in entries}["open"] == (
                area.here / "e/open"
            ).stat().st_size


def test_remove_tree_while_another_adds(area: Area) -> None:
    """rm -r sees what another job added and removes it, or fails with the file intact: never an orphan."""
    for i in range(10):
        (area.here / f"rr{i}").mkdir()
        (area.here / f"rr{i}/a").touch()
        assert os.listdir(area.here / f"rr{i}") == ["a"]
        (area.back / f"rr{i}/b").touch()
        done = subprocess.run(
            ["rm", "-r", str(area.here / f"rr{i}")], check=False, capture_output=True, timeout=20
        )
        if done.returncode == 0:
            assert not (area.back / f"rr{i}").exists()
        else:
            assert (area.back / f"rr{i}/b").exists()
            assert b"not empty" in done.stderr
            eventually(
                lambda d=f"rr{i}": os.listdir(area.here / d) == ["b"], area.volume.window, "b is visible"
            )


def test_removing_a_name_that_is_gone(area: Area) -> None:
    """unlink, rmdir and rename of names that another took away answer ENOENT; mkdir over a new name
    EEXIST.
    """
    for name in ("u", "r"):
        (area.here / name).write_text("x")
    (area.here / "d").mkdir()
    area.settle()
    for path in (area.back / "u", area.back / "r"):
        path.unlink()
    (area.back / "d").rmdir()
    assert error_of(os.unlink, area.here / "u") == "ENOENT"
    assert error_of(os.rename, area.here / "r", area.here / "r2") == "ENOENT"
    assert error_of(os.rmdir, area.here / "d") == "ENOENT"
    assert not (area.here / "d").exists()
    (area.back / "d").write_text("now a file")
    assert error_of(os.mkdir, area.here / "d") == "EEXIST"
    assert (area.here / "d").read_text() == "now a file"


def test_appends_from_two_mounts_are_never_lost(area: Area) -> None:
    """Alternate appends, open to close, on two mounts: every line is there, in order."""
    expected = []
    for i in range(40):
        with ((area.here, area.there)[i % 2] / "ap").open("a") as writer:
            writer.write(f"{i}\n")
        expected.append(str(i))
    assert (area.back / "ap").read_text().split() == expected


def test_invalidation_does_not_wedge_readers(area: Area) -> None:
    """Fifty replacements under four busy readers: no call on another path waits long, nobody ends in D
    state, every read is whole. An open that two replacements overtake may get ESTALE, as on NFS: seldom.
    """
    versions = [os.urandom(8 << 20), os.urandom(8 << 20)]
    (area.back / "big").write_bytes(versions[0])
    (area.here / "other").write_text("o")
    stop, worst, failures, overtaken, whole = threading.Event(), [0.0], [], [], []

    def read() -> None:
        while not stop.is_set():
            try:
                file = (area.here / "big").open("rb", 0)
            except OSError as error:
                overtaken.append(errno.errorcode[error.errno or 0])
                continue
            with file:
                pieces = []
                while piece := file.read(128 << 10):
                    pieces.append(piece)
            (whole if b"".join(pieces) in versions else failures).append(len(b"".join(pieces)))

    def look() -> None:
        while not stop.is_set():
            start = time.monotonic()
            os.stat(area.here / "other")
            os.listdir(area.here)
            worst[0] = max(worst[0], time.monotonic() - start)
            stop.wait(0.01)

    threads = [*(threading.Thread(target=read) for _ in range(4)), threading.Thread(target=look)]
    for thread in threads:
        thread.start()
    try:
        for i in range(50):
            (area.back / "big.new").write_bytes(versions[i % 2])
            (area.back / "big.new").rename(area.back / "big")
            stop.wait(0.02)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)

    assert not any(thread.is_alive() for thread in threads), "a reader is wedged"
    assert failures == []
    assert set(overtaken) <= {"ESTALE"}
    assert len(overtaken) <= len(whole) // 20, "opens that were overtaken twice"
    assert worst[0] < 3
    assert (area.here / "big").read_bytes() == versions[1]


def test_in_place_overwrites_under_busy_readers(area: Area) -> None:
    """D8: fifty overwrites in place under readers by mapping and by read: the last content arrives, no one
    hangs.
    """
    size = 4 << 20
    (area.back / "p").write_bytes(b"\0" * size)
    stop, passes = threading.Event(), [0]

    def read() -> None:
        while not stop.is_set():
            with (area.here / "p").open("rb", 0) as file:
                while file.read(128 << 10):
                    pass
            passes[0] += 1

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        with (area.back / "p").open("r+b", 0) as writer:
            for i in range(1, 51):
                writer.seek(0)
                writer.write(bytes([i]) * size)
                stop.wait(0.01)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)

    assert not any(thread.is_alive() for thread in threads), "a reader is wedged"
    assert passes[0] > 3
    assert (area.here / "p").read_bytes() == bytes([50]) * size


@pytest.mark.modes("cached")
def test_one_fetch_for_many_readers(area: Area) -> None:
    """Sixteen readers of one cold file cost the store about its size once."""
    if PLAIN:
        return
    data = os.urandom(32 << 20)
    (area.back / "cold").write_bytes(data)
    os.utime(area.back / "cold", ns=(10**18, 10**18))
    eventually(lambda: time.time_ns() - (area.back / "cold").stat().st_ctime_ns > 3 * 10**9, 10, "not racy")
    before = area.volume.status()["store_read_bytes"]
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append((area.here / "cold").read_bytes() == data))
        for _ in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 16
    assert area.volume.status()["store_read_bytes"] - before <= len(data) * 1.1


@pytest.mark.modes("cached")
def test_second_read_costs_the_store_nothing(area: Area) -> None:
    """After the kernel's pages are dropped a file is read from the cache, no byte from the store (R5's
    half).
    """
    if PLAIN:
        return
    data = os.urandom(8 << 20)
    (area.back / "w").write_bytes(data)
    eventually(lambda: time.time_ns() - (area.back / "w").stat().st_ctime_ns > 3 * 10**9, 10, "not racy")
    assert (area.here / "w").read_bytes() == data
    status = area.volume.status()
    Path("/proc/sys/vm/drop_caches").write_text("1")
    assert (area.here / "w").read_bytes() == data
    again = area.volume.status()
    assert again["store_read_bytes"] == status["store_read_bytes"]
    assert again["cache"]["hits"] > status["cache"]["hits"]
    assert again["cache"]["used_bytes"] >= len(data)


def test_quiet_open_file_is_published(make_volume: object) -> None:
    """A file that stays open is published once it has been quiet for the commit interval (W3)."""
    if PLAIN:
        return
    assert callable(make_volume)
    volume = make_volume("--commit-interval", "1").mount()
    path = volume.backing / "log"
    with (volume.mountpoint / "log").open("w", buffering=1) as writer:
        for i in range(3):
            writer.write(f"line {i}\n")
            expected = "".join(f"line {k}\n" for k in range(i + 1))
            eventually(
                lambda e=expected: path.exists() and path.read_text() == e, 6, f"line {i} in the store"
            )


def test_in_background_close_returns_before_the_commit(make_volume: object) -> None:
    """In background mode 300 small files are created, closed, and appear in the store by themselves (W5)."""
    if PLAIN:
        return
    assert callable(make_volume)
    volume = make_volume(mode="background").mount()
    for i in range(300):
        (volume.mountpoint / f"n{i}").write_text(str(i))
        assert (volume.mountpoint / f"n{i}").read_text() == str(i)
    eventually(lambda: volume.status()["commit"]["waiting"] == 0, 20, "the queue is empty")
    assert sorted(int(p.read_text()) for p in volume.backing.glob("n*")) == list(range(300))


@pytest.mark.modes("local", "cached")
def test_shell_redirection_is_committed_when_the_shell_returns(area: Area) -> None:
    """A shell duplicates the descriptor and closes one before anything is written: the last close commits."""
    subprocess.run(
        ["sh", "-c", 'head -c 3000000 /dev/zero > "$0"', str(area.here / "f")], check=True, timeout=20
    )
    assert (area.back / "f").stat().st_size == 3_000_000
