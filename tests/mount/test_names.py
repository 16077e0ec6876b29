"""Names: what rename, link, unlink, mkdir and readdir do to them, as on a local disk."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.conftest import Area
from tests.mount.calls import EXCHANGE, NOREPLACE, error_of, rename_with
from tests.mount.volume import PLAIN

pytestmark = pytest.mark.modes("local", "cached", "background")

NAMES = [
    *(b"caf\xc3\xa9", b"cafe\xcc\x81", b"a\nb", b"a\rb", b"(x", b"%41", b" lead", b"trail ", b"-n"),
    *(b"a:b\\c*?", b"x" * 255, "\U0001f600".encode(), b".dot", b"..x", b"\xff\xfe", b"con", b"A", b"a"),
]


def test_names_are_bytes(area: Area) -> None:
    """Any byte but NUL and slash, up to 255 of them, comes back as it went in, also after a rename of the
    directory.
    """
    directory = os.fsencode(area.here / "names")
    os.mkdir(directory)
    for name in NAMES:
        Path(os.fsdecode(directory + b"/" + name)).write_bytes(name)

    assert sorted(os.listdir(directory)) == sorted(NAMES)
    os.rename(directory, directory + b"2")
    for name in NAMES:
        assert Path(os.fsdecode(directory + b"2/" + name)).read_bytes() == name
    assert error_of(os.mkdir, directory + b"2/" + b"y" * 256) == "ENAMETOOLONG"
    area.settle()
    assert sorted(os.listdir(os.fsencode(area.back / "names2"))) == sorted(NAMES)


def test_replace_while_the_target_is_dirty(area: Area) -> None:
    """W8: fifty times temp-then-rename over a target that was just written: the last version wins, once."""
    target, temporary = area.here / "t", area.here / "t.tmp"
    for i in range(50):
        target.write_text(f"v{i}-target")
        temporary.write_text(f"v{i}-new")
        temporary.rename(target)
        assert target.read_text() == f"v{i}-new"

    area.settle()
    assert (area.back / "t").read_text() == "v49-new"
    assert os.listdir(area.back) == ["t"]


def test_rename_directory_of_uncommitted_files_then_delete(area: Area) -> None:
    """Neither the old nor the new directory comes back after the commit of what was in it."""
    (area.here / "d1/deep").mkdir(parents=True)
    (area.here / "d1/deep/f").write_text("a")
    (area.here / "d1").rename(area.here / "d2")
    assert (area.here / "d2/deep/f").read_text() == "a"
    assert not (area.here / "d1").exists()
    (area.here / "d2/deep/f").unlink()
    (area.here / "d2/deep").rmdir()
    (area.here / "d2").rmdir()

    area.settle()
    assert os.listdir(area.back) == []


def test_rename_directory_keeps_uncommitted_files(area: Area) -> None:
    """A file written just before its directory's rename is committed under the new name, an open one too."""
    (area.here / "d1").mkdir()
    with (area.here / "d1/open").open("w", buffering=1) as still_open:
        still_open.write("before\n")
        (area.here / "d1/closed").write_text("c")
        (area.here / "d1").rename(area.here / "d2")
        still_open.write("after\n")

    area.settle()
    assert (area.back / "d2/open").read_text() == "before\nafter\n"
    assert (area.back / "d2/closed").read_text() == "c"
    assert os.listdir(area.back) == ["d2"]


def test_delete_and_create_again(area: Area) -> None:
    """A hundred times delete and create under one name: nothing is resurrected, nothing lost."""
    path = area.here / "r"
    for i in range(100):
        path.write_text(f"old{i}")
        path.unlink()
        path.write_text(f"new{i}")

    assert path.read_text() == "new99"
    area.settle()
    assert (area.back / "r").read_text() == "new99"


def test_rename_over_an_open_file(area: Area) -> None:
    """The reader of a replaced file keeps it; the writer of a renamed file follows it."""
    a, b = area.here / "a", area.here / "b"
    a.write_text("new")
    b.write_text("old" * 100_000)
    with b.open() as reader:
        reader.read(3)
        a.rename(b)
        assert reader.read() == ("old" * 100_000)[3:]
    assert b.read_text() == "new"
    assert not a.exists()
    with b.open("a") as writer:
        b.rename(a)
        writer.write("+")

    assert a.read_text() == "new+"
    assert not b.exists()
    area.settle()
    assert (area.back / "a").read_text() == "new+"
    assert os.listdir(area.back) == ["a"]


def test_unlinked_but_open(area: Area) -> None:
    """An unlinked file works until its last close, and nothing of it is committed."""
    path = area.here / "u"
    with path.open("w+") as file:
        file.write("abc")
        file.flush()
        path.unlink()
        file.write("def")
        file.flush()
        file.seek(0)
        assert file.read() == "abcdef"
        os.ftruncate(file.fileno(), 2)
        attributes = os.fstat(file.fileno())
        assert (attributes.st_size, attributes.st_nlink) == (2, 0)
        os.fchmod(file.fileno(), 0o600)
        os.fsync(file.fileno())
        assert os.listdir(area.here) == []

    area.settle()
    assert os.listdir(area.back) == []


def test_unlinked_but_open_for_reading(area: Area) -> None:
    """A committed file that is unlinked is read to its end through the open handle."""
    path = area.here / "u"
    data = os.urandom(3_000_000)
    path.write_bytes(data)
    area.settle()
    with path.open("rb") as file:
        assert file.read(10) == data[:10]
        path.unlink()
        assert file.read() == data[10:]
        assert os.fstat(file.fileno()).st_nlink == 0


def test_rename_noreplace_and_exchange(area: Area) -> None:
    """NOREPLACE refuses a taken name; EXCHANGE swaps files, and a file with a directory."""
    a, b, d = area.here / "a", area.here / "b", area.here / "d"
    a.write_text("A")
    b.write_text("B")
    d.mkdir()
    (d / "inner").write_text("I")
    assert error_of(rename_with, NOREPLACE, a, b) == "EEXIST"
    rename_with(NOREPLACE, a, area.here / "c")
    rename_with(NOREPLACE, area.here / "c", a)
    rename_with(EXCHANGE, a, b)
    assert (a.read_text(), b.read_text()) == ("B", "A")
    rename_with(EXCHANGE, a, d)
    assert (a / "inner").read_text() == "I"
    assert d.read_text() == "B"
    assert error_of(rename_with, EXCHANGE, a, area.here / "none") == "ENOENT"

    area.settle()
    assert (area.back / "a/inner").read_text() == "I"
    assert (area.back / "d").read_text() == "B"
    assert (area.back / "b").read_text() == "A"


def test_rename_errors(area: Area) -> None:
    """What a local disk refuses is refused with the same errno, and a file renamed onto itself stays."""
    (area.here / "d/e").mkdir(parents=True)
    (area.here / "full").mkdir()
    (area.here / "full/f").write_text("f")
    (area.here / "f").write_text("f")
    here = area.here
    assert error_of(os.rename, here / "none", here / "x") == "ENOENT"
    assert error_of(os.rename, here / "d", here / "d/e/x") == "EINVAL"
    assert error_of(os.rename, here / "d", here / "full") == "ENOTEMPTY"
    assert error_of(os.rename, here / "d", here / "f") == "ENOTDIR"
    assert error_of(os.rename, here / "f", here / "d") == "EISDIR"
    os.rename(here / "f", here / "f")
    os.rename(here / "d/e", here / "e")
    os.rename(here / "d", here / "e")

    assert sorted(os.listdir(here)) == ["e", "f", "full"]
    assert error_of(os.rmdir, here / "full") == "ENOTEMPTY"
    assert error_of(os.rmdir, here / "f") == "ENOTDIR"
    assert error_of(os.unlink, here / "full") == "EISDIR"
    assert error_of(os.mkdir, here / "f") == "EEXIST"
    assert error_of(os.mkdir, here / "f/x") == "ENOTDIR"
    assert error_of(os.listdir, here / "f") == "ENOTDIR"
    assert error_of(os.rmdir, here / "none") == "ENOENT"


def test_hard_links_are_one_file(area: Area) -> None:
    """Two names share inode, link count and bytes, in the backing too; unlinking one leaves the other."""
    a, b = area.here / "a", area.here / "b"
    a.write_text("one")
    os.link(a, b)
    assert a.stat().st_ino == b.stat().st_ino
    assert (a.stat().st_nlink, b.stat().st_nlink) == (2, 2)
    with a.open("a") as writer:
        writer.write("+two")
    assert b.read_text() == "one+two"

    area.settle()
    assert (area.back / "a").read_text() == (area.back / "b").read_text() == "one+two"
    assert (area.back / "a").stat().st_ino == (area.back / "b").stat().st_ino
    a.unlink()
    assert b.stat().st_nlink == 1
    assert b.read_text() == "one+two"
    (area.here / "d").mkdir()
    assert error_of(os.link, area.here / "d", area.here / "d2") == "EPERM"
    assert error_of(os.link, b, b) == "EEXIST"


def test_hard_link_of_an_uncommitted_open_file(area: Area) -> None:
    """A link made while the file is open and dirty holds the final bytes under both names."""
    a, b = area.here / "a", area.here / "b"
    with a.open("w", buffering=1) as writer:
        writer.write("one\n")
        os.link(a, b)
        writer.write("two\n")
    assert b.read_text() == "one\ntwo\n"

    area.settle()
    assert (area.back / "a").read_text() == (area.back / "b").read_text() == "one\ntwo\n"


def test_symlinks(area: Area) -> None:
    """A symlink keeps its target and length, is replaced by rename, and leads through directories."""
    here = area.here
    os.symlink("some/target", here / "sl")
    assert os.readlink(here / "sl") == "some/target"
    assert os.lstat(here / "sl").st_size == 11
    os.symlink("other", here / "new")
    os.rename(here / "new", here / "sl")
    assert os.readlink(here / "sl") == "other"
    (here / "sd").mkdir()
    (here / "sd/f").write_text("q")
    os.symlink("sd", here / "ld")
    assert (here / "ld/f").read_text() == "q"
    os.symlink("loop", here / "loop")
    assert error_of(os.stat, here / "loop") == "ELOOP"
    long = "x/" * 2000
    os.symlink(long, here / "long")
    assert os.readlink(here / "long") == long

    area.settle()
    assert os.readlink(area.back / "sl") == "other"
    assert error_of(os.readlink, here / "sd") == "EINVAL"


def test_symlinks_do_not_lead_the_daemon_out(area: Area, tmp_path: Path) -> None:
    """A symlink is resolved by the caller's kernel: an absolute one reads the caller's file, and is not
    written into.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    (area.here / "d").mkdir()
    (area.here / "d/f").write_text("inside")
    area.settle()
    assert (area.here / "d/f").read_text() == "inside"
    (area.back / "d/f").unlink()
    (area.back / "d").rmdir()
    os.symlink(outside, area.back / "d")
    os.symlink(outside / "secret", area.here / "s")
    area.volume.refresh()

    assert stat.S_ISLNK(os.lstat(area.here / "d").st_mode)
    (area.here / "s2").write_text("ours")
    (area.here / "s2").rename(area.here / "s")
    area.settle()
    assert (outside / "secret").read_text() == "s"
    assert os.listdir(outside) == ["secret"]
    assert (area.back / "s").read_text() == "ours"


def test_mknod(area: Area) -> None:
    """mknod makes regular files and FIFOs, and a FIFO passes bytes between two processes of the mount."""
    os.mknod(area.here / "regular", 0o640 | stat.S_IFREG)
    os.mkfifo(area.here / "fifo", 0o600)
    assert (area.here / "regular").read_bytes() == b""
    assert (area.here / "fifo").is_fifo()
    child = os.fork()
    if child == 0:
        try:
            (area.here / "fifo").write_bytes(b"through")
        finally:
            os._exit(0)
    assert (area.here / "fifo").read_bytes() == b"through"
    os.waitpid(child, 0)
    assert (area.back / "fifo").is_fifo()
    assert error_of(os.mkfifo, area.here / "fifo") == "EEXIST"


def test_inode_numbers_are_stable(area: Area) -> None:
    """D5: A file keeps its number over appends, renames and listings, and readdir agrees with stat."""
    (area.here / "in").mkdir()
    path, other = area.here / "f", area.here / "g"
    path.write_text("x")
    number = path.stat().st_ino
    for _ in range(3):
        os.listdir(area.here)
        with path.open("a") as writer:
            writer.write("y")
        path.rename(other)
        other.rename(path)
        area.settle()

    assert path.stat().st_ino == number
    assert path.stat().st_nlink == 1
    with os.scandir(area.here) as entries:
        assert {e.name: e.inode() for e in entries} == {
            n: os.lstat(area.here / n).st_ino for n in os.listdir(area.here)
        }


def test_directory_link_counts_and_size(area: Area) -> None:
    """A directory counts its subdirectories or answers 1, as find(1) expects, and is a directory with its
    mode.
    """
    for name in ("a", "b"):
        (area.here / name).mkdir(mode=0o751)
    assert area.here.stat().st_nlink in (1, 4)
    assert stat.S_IMODE((area.here / "a").stat().st_mode) == 0o751
    (area.here / "a").rmdir()
    assert area.here.stat().st_nlink in (1, 3)


def test_readdir_while_the_directory_changes(area: Area) -> None:
    """An iteration sees each entry that stays exactly once, whatever is removed and added meanwhile."""
    stay = {f"stay{i}" for i in range(600)}
    for i in range(600):
        (area.here / f"stay{i}").touch()
        (area.here / f"go{i}").touch()
    seen = []
    with os.scandir(area.here) as entries:
        for number, entry in enumerate(entries):
            seen.append(entry.name)
            if number < 300:
                (area.here / f"go{number}").unlink()
                (area.here / f"come{number}").touch()

    assert sorted(n for n in seen if n.startswith("stay")) == sorted(stay)
    assert len(seen) == len(set(seen))
    assert len(os.listdir(area.here)) == 600 + 300 + 300


def test_seekdir(area: Area) -> None:
    """A directory descriptor is listed twice after a rewind, and shows what was created between."""
    (area.here / "a").touch()
    descriptor = os.open(area.here, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert os.listdir(descriptor) == ["a"]
        (area.here / "b").touch()
        assert sorted(os.listdir(descriptor)) == ["a", "b"]
    finally:
        os.close(descriptor)


def test_removed_directory_in_use(area: Area) -> None:
    """A directory removed under a descriptor is empty and refuses new names with ENOENT."""
    (area.here / "d").mkdir()
    descriptor = os.open(area.here / "d", os.O_RDONLY | os.O_DIRECTORY)
    try:
        (area.here / "d").rmdir()
        assert (
            error_of(lambda: os.close(os.open("x", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))) == "ENOENT"
        )
        assert os.fstat(descriptor).st_nlink == 0
    finally:
        os.close(descriptor)


def test_the_reserved_name_is_hidden(area: Area) -> None:
    """D3: `.volfs` at the root is in no listing, nor looked up, made or replaced; deeper it is a plain
    name.
    """
    if PLAIN:
        return
    root = area.volume.mountpoint
    (area.here / "f").write_text("x")
    assert ".volfs" not in os.listdir(root)
    assert error_of(os.lstat, root / ".volfs") == "ENOENT"
    assert error_of(os.listdir, root / ".volfs") == "ENOENT"
    for function in (os.mkdir, lambda p: os.rename(area.here / "f", p), lambda p: os.symlink("x", p)):
        assert error_of(function, root / ".volfs") == "EPERM"
    (area.here / ".volfs").write_text("plain")
    assert (area.here / ".volfs").read_text() == "plain"
