"""`volfs fsck` on mounts and on cache directories: each kind of damage, its exit code, and what is left."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.leftovers import (
    WAYS,
    WHERES,
    kept,
    killed_while_writing,
    report,
    rows,
    staged,
    target,
)
from tests.mount.calls import NOBODY, as_user
from tests.mount.volume import Volume, eventually
from tests.wal import end_of_records, leaf_with
from volfs.core.spans import BLOCK_BYTES, block_count

Make = Callable[..., Volume]

both = pytest.mark.parametrize("where", WHERES)

SIZE = 3_000_000
BLOCKS = block_count(SIZE)


def with_cache(volume: Volume) -> bytes:
    """A mount that has read a file, all of which is in the cache and its index; the content."""
    data = os.urandom(SIZE)
    (volume.backing / "f").write_bytes(data)
    os.utime(volume.backing / "f", ns=(1, 1))
    volume.mount()

    def filled() -> bool:
        (volume.mountpoint / "f").read_bytes()
        return bool(report(volume, "mount", "--no-repair")[1]["cache"]["bytes"] == SIZE)

    eventually(filled, 20, "the file is in the cache", every=0.2)
    eventually(lambda: known_blocks(volume) == BLOCKS, 10, "the index knows it")
    return data


def known_blocks(volume: Volume) -> int:
    """How many blocks the index knows."""
    with closing(sqlite3.connect(volume.cache_dir / "cache/index.db")) as index:
        return int(index.execute("SELECT COUNT(*) FROM block").fetchone()[0])


def cache_file(volume: Volume) -> Path:
    """The one local file that holds blocks."""
    (path,) = [path for path in (volume.cache_dir / "cache/blocks").rglob("*") if path.is_file()]
    return path


def flip(path: Path, offset: int) -> None:
    """Change one byte."""
    with path.open("r+b") as file:
        byte = os.pread(file.fileno(), 1, offset)[0]
        os.pwrite(file.fileno(), bytes([byte ^ 0xFF]), offset)


@both
def test_no_damage(make_volume: Make, where: str) -> None:
    """Exit code 0, and the counts say that something was looked at."""
    volume = make_volume(mode="cached")
    with_cache(volume)
    code, document = report(volume, where)
    people = volume.volfs("fsck", target(volume, where))

    assert code == 0
    assert (document["found"], document["remaining"]) == (0, 0)
    assert (document["cache"]["files"], document["cache"]["blocks"]) == (1, BLOCKS)
    assert document["cache"]["bytes"] == SIZE
    assert people.returncode == 0
    assert people.stdout == (
        "journal: records 0, staged files 0, kept for volfs recover 0\n"
        f"cache: files 1, blocks {BLOCKS}, verified 2.9 MiB\n"
        "no damage\n"
    )


@both
@pytest.mark.parametrize("kind", ["flipped byte", "truncated", "missing", "foreign"])
def test_damage_of_the_cache(make_volume: Make, where: str, kind: str) -> None:
    """Found by a look (4), mended (1), gone (0); and the file reads right, now and on the next mount."""
    volume = make_volume(mode="cached")
    data = with_cache(volume)
    place = target(volume, where)
    path = cache_file(volume)
    if kind == "flipped byte":
        flip(path, 1_000_000)
        expected = ("damaged_blocks", 1)
    elif kind == "truncated":
        os.truncate(path, 2_500_000)
        expected = ("damaged_blocks", BLOCKS - 2_500_000 // BLOCK_BYTES)
    elif kind == "missing":
        path.unlink()
        expected = ("missing_files", 1)
    else:
        (path.parent / "stranger").write_bytes(b"not ours")
        expected = ("foreign_files", 1)
    looked, found = report(volume, where, "--no-repair")
    mended = volume.volfs("fsck", place)
    again, nothing = report(volume, where)

    assert (looked, found["remaining"]) == (4, expected[1])
    assert found["cache"][expected[0]] == expected[1] == found["found"]
    assert mended.returncode == 1
    assert f"found {expected[1]}, repaired {expected[1]}, left 0\n" in mended.stdout
    assert (again, nothing["found"]) == (0, 0)
    if where == "directory":
        volume.remount()
    assert (volume.mountpoint / "f").read_bytes() == data


@pytest.mark.parametrize(("where", "mode"), WAYS)
def test_a_stray_staged_file(make_volume: Make, where: str, mode: str) -> None:
    """It is quarantined, never deleted: `volfs recover` has it, and can publish it."""
    volume = make_volume(mode=mode)
    killed_while_writing(volume, {"f": b"precious"})
    rows(volume, "UPDATE staged SET state = 'kept'")
    if where == "mount":
        volume.remount()
    (path,) = staged(volume)
    (path.parent / "stray").write_bytes(b"whose?")
    place = target(volume, where)
    looked, _ = report(volume, where, "--no-repair")
    code, document = report(volume, where)
    again, _ = report(volume, where)
    files = {file["id"]: file for file in kept(volume, where)}
    done = volume.volfs("recover", "publish", place, "stray", "--to", "found/it")
    other = volume.volfs("recover", "publish", place, path.name)

    assert (looked, code, again) == (4, 1, 0)
    assert (document["journal"]["quarantined_ids"], document["journal"]["kept"]) == (["stray"], 2)
    assert (files["stray"]["path"], files["stray"]["reason"]) == ("", "its record was lost")
    assert (done.returncode, other.returncode) == (0, 0)
    assert (volume.backing / "found/it").read_bytes() == b"whose?"
    assert (volume.backing / "f").read_bytes() == b"precious"


def test_a_staged_file_that_is_gone(make_volume: Make) -> None:
    """Lost bytes are named and remain damage; what is not lost is committed by the next mount."""
    volume = make_volume(mode="cached")
    killed_while_writing(volume, {"lost": b"lost", "there": b"there"})
    rows(volume, "UPDATE staged SET state = 'closed'")
    ((name,),) = rows(volume, "SELECT name FROM staged WHERE path = CAST('lost' AS BLOB)")
    (volume.cache_dir / "staging" / name).unlink()
    looked, document = report(volume, "directory", "--no-repair")
    people = volume.volfs("fsck", str(volume.cache_dir))
    again, _ = report(volume, "directory")
    volume.remount()

    assert (looked, document["journal"]["lost_files"]) == (4, ["lost"])
    assert people.returncode == 4
    assert "files whose staged bytes are lost: 1\n    lost\n" in people.stdout
    assert again == 0
    assert (volume.mountpoint / "there").read_bytes() == b"there"
    assert not (volume.mountpoint / "lost").exists()


def test_a_staged_file_that_is_gone_while_it_is_open(make_volume: Make) -> None:
    """The daemon has its bytes by the descriptor: that is damage, and a commit repairs it."""
    volume = make_volume(mode="cached")
    volume.mount()

    def check() -> Any:
        # Not by the command line: a new process closes its copy of our descriptor, which is a commit (W3a).
        os.setxattr(volume.mountpoint, "user.volfs.fsck", b"{}")
        return json.loads(os.getxattr(volume.mountpoint, "user.volfs.fsck"))

    with (volume.mountpoint / "f").open("wb", buffering=0) as file:
        file.write(b"here")
        (path,) = staged(volume)
        path.unlink()
        document = check()
        volume.commit()
        after = check()

    assert (document["found"], document["remaining"]) == (1, 1)
    assert (document["journal"]["held_files"], document["journal"]["lost"]) == (["f"], 0)
    assert after["found"] == 0
    assert (volume.backing / "f").read_bytes() == b"here"


@both
def test_a_torn_journal(make_volume: Make, where: str) -> None:
    """Case 3: the last record is lost and said to be; its bytes are kept, and all else is as it was."""
    volume = make_volume(mode="cached")
    killed_while_writing(volume, {"first": b"1", "second": b"2"})
    log = volume.cache_dir / "journal.db-wal"
    os.truncate(log, end_of_records(log) - 7)
    if where == "mount":
        volume.remount()  # mends it by itself, and says so in the log
        assert "torn" in volume.log_tail(200)
        code, again = 1, report(volume, "mount")[0]
    else:
        looked, _ = report(volume, "directory", "--no-repair")
        code, document = report(volume, "directory")
        again, _ = report(volume, "directory")
        assert looked == 4
        assert document["journal"]["damage"] is not None
        assert document["journal"]["quarantined"] == 1
        volume.remount()
    files = kept(volume, "mount")

    assert (code, again) == (1, 0)
    assert sorted(file["path"] for file in files) == ["", "first"]
    for file in files:
        done = volume.volfs(
            "recover", "publish", str(volume.mountpoint), file["id"], "--to", file["path"] or "?"
        )
        assert done.returncode == 0
    assert (volume.backing / "first").read_bytes() == b"1"
    assert (volume.backing / "?").read_bytes() == b"2"


def test_a_damaged_journal(make_volume: Make) -> None:
    """A bad page costs the records in it; no staged file is lost, whether its record is or not."""
    volume = make_volume()
    files = {f"{number:03}-{'x' * 200}": b"%d" % number for number in range(120)}
    killed_while_writing(volume, files)
    journal = volume.cache_dir / "journal.db"
    rows(volume, "PRAGMA wal_checkpoint(TRUNCATE)")
    place = leaf_with(journal.read_bytes(), b"060-xxx")
    with journal.open("r+b") as file:
        file.seek(place)
        file.write(b"\xff" * 4096)
    looked, before = report(volume, "directory", "--no-repair")
    code, document = report(volume, "directory")
    again, after = report(volume, "directory")
    volume.remount()
    left = kept(volume, "mount")

    assert (looked, code, again) == (4, 1, 0)
    assert before["journal"]["damage"] is not None
    assert 0 < document["journal"]["quarantined"] < 60
    assert after["journal"]["rows"] == 120
    assert len(left) == 120
    assert len(list(volume.cache_dir.glob("journal.db.damaged-*"))) >= 1
    names = {file["path"] for file in left if file["path"]}
    assert len(names) == 120 - document["journal"]["quarantined"]
    assert names < set(files)
    for file in left:
        os.setxattr(volume.mountpoint, "user.volfs.recover.discard", json.dumps({"id": file["id"]}).encode())
        os.getxattr(volume.mountpoint, "user.volfs.recover.last")


def test_a_damaged_journal_under_a_daemon(make_volume: Make) -> None:
    """It is in use, so it is told and not touched; the next mount reads what can be read."""
    volume = make_volume(mode="cached")
    volume.mount()
    journal = volume.cache_dir / "journal.db"
    rows(volume, "PRAGMA wal_checkpoint(PASSIVE)")
    flip(journal, 4096)
    code, document = report(volume, "mount")
    flip(journal, 4096)
    again, _ = report(volume, "mount")

    assert code == 4
    assert document["journal"]["damage"] is not None
    assert again == 0


def test_backing_that_is_not_there(make_volume: Make) -> None:
    """Staged files in a backing that is not mounted are not lost: nothing is checked, and no record goes."""
    volume = make_volume()
    killed_while_writing(volume, {"f": b"x"})
    (volume.backing / ".volfs").rename(volume.base / "away")
    done = volume.volfs("fsck", str(volume.cache_dir))
    (volume.base / "away").rename(volume.backing / ".volfs")
    code, document = report(volume, "directory")
    volume.remount()
    (file,) = kept(volume, "mount")
    published = volume.volfs("recover", "publish", str(volume.mountpoint), file["id"])

    assert done.returncode == 8
    assert "is the file system of the backing directory mounted?" in done.stderr
    assert (code, document["journal"]["rows"]) == (0, 1)
    assert published.returncode == 0


def test_targets(make_volume: Make) -> None:
    """2 for what is none, 8 for what cannot be checked now; a directory in use is checked by its daemon."""
    volume = make_volume(mode="cached")
    none = volume.volfs("fsck", str(volume.backing))
    volume.mount()
    in_use = volume.volfs("fsck", str(volume.cache_dir))
    volume.kill()
    died = volume.volfs("fsck", str(volume.mountpoint))
    volume.remount()

    assert (none.returncode, in_use.returncode, died.returncode) == (2, 0, 8)
    assert "neither a volfs mount nor the cache directory" in none.stderr
    assert "has died" in died.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user; make test runs as root")
def test_other_users_may_not(make_volume: Make) -> None:
    """Kept files are everybody's, and a check is work: only root and the daemon's user may ask."""
    volume = make_volume("--allow-other")
    volume.mount()
    volume.backing.chmod(0o777)
    mount = volume.mountpoint
    for name in ("fsck", "recover", "recover.last"):
        assert as_user(NOBODY, partial(os.getxattr, mount, f"user.volfs.{name}")) == "EPERM", name
    for name in ("fsck", "recover.discard", "recover.publish"):
        assert as_user(NOBODY, partial(os.setxattr, mount, f"user.volfs.{name}", b"{}")) == "EPERM", name
