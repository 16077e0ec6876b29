"""`volfs recover` on mounts and on cache directories: what a killed daemon left, in the user's hands."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.cli.leftovers import WAYS, WHERES, kept, killed_while_writing, staged, target
from tests.mount.volume import Volume

Make = Callable[..., Volume]

both = pytest.mark.parametrize("where", WHERES)
ways = pytest.mark.parametrize(("where", "mode"), WAYS)


def with_kept_files(volume: Volume, files: dict[str, bytes]) -> None:
    """A mount whose last daemon was killed while these files were written."""
    killed_while_writing(volume, files)
    volume.remount()


@ways
def test_list_show_publish(make_volume: Make, where: str, mode: str) -> None:
    """W6c: what lies there is listed and shown, and publish brings it where it belongs, byte for byte."""
    volume = make_volume(mode=mode)
    data = os.urandom(150_000).hex()
    with_kept_files(volume, {"report": data.encode()})
    (file,) = kept(volume, where)
    place = target(volume, where)
    table = volume.volfs("recover", "list", place)
    shown = volume.volfs("recover", "show", place, file["id"][:6])
    content = volume.volfs("recover", "show", place, file["id"][:6], "--content")
    before = (volume.backing / "report").exists()
    done = volume.volfs("recover", "publish", place, file["id"][:6])

    assert (file["path"], file["bytes"]) == ("report", len(data))
    assert f"{file['id'][:12]}  report  293 KiB" in table.stdout
    assert "being written when the daemon ended" in table.stdout
    assert named(shown.stdout).endswith(file["id"])
    assert content.stdout == data
    assert not before
    assert (done.returncode, done.stdout, done.stderr) == (0, "report\n", "")
    assert (volume.backing / "report").read_text() == data
    assert (kept(volume, where), staged(volume)) == ([], [])


def named(shown: str) -> str:
    """The local file that `show` names."""
    (line,) = [line for line in shown.splitlines() if line.startswith("file ")]
    return line.split(None, 1)[1]


@pytest.mark.parametrize("mode", ["local", "cached"])
def test_a_mount_shows_at_once_what_was_published(make_volume: Make, mode: str) -> None:
    """Names and content that the kernel knew before are dropped, and the status counts it no more."""
    volume = make_volume("--freshness", "60", "--poll-interval", "60", mode=mode)
    killed_while_writing(volume, {"f": b"unfinished"})
    volume.remount()
    here = volume.mountpoint
    assert os.listdir(here) == []
    assert not (here / "d").exists()
    assert volume.status()["commit"]["kept"] == 1
    (file,) = kept(volume, "mount")
    done = volume.volfs("recover", "publish", str(here), file["id"], "--to", "d/e/f")

    assert done.stdout == "d/e/f\n"
    assert os.listdir(here) == ["d"]
    assert (here / "d/e/f").read_bytes() == b"unfinished"
    assert volume.status()["commit"]["kept"] == 0


@both
def test_publish_overwrites_nothing(make_volume: Make, where: str) -> None:
    """W7: what took the place meanwhile stays; the new name is on stdout, and why on stderr."""
    volume = make_volume(mode="cached")
    with_kept_files(volume, {"f": b"ours"})
    (volume.backing / "f").write_bytes(b"theirs")
    (file,) = kept(volume, where)
    done = volume.volfs("recover", "publish", target(volume, where), file["id"])

    assert done.returncode == 0
    assert "its place is taken" in done.stderr
    assert done.stdout.startswith("f.conflict-")
    assert (volume.backing / "f").read_bytes() == b"theirs"
    assert (volume.backing / done.stdout.strip()).read_bytes() == b"ours"


@both
def test_a_publish_that_fails(make_volume: Make, where: str) -> None:
    """The store's reason and exit code 1; the file is kept as it was."""
    volume = make_volume(mode="cached")
    with_kept_files(volume, {"f": b"ours"})
    (volume.backing / "file").write_bytes(b"no directory")
    before = kept(volume, where)
    place, id_ = target(volume, where), before[0]["id"]
    failed = volume.volfs("recover", "publish", place, id_, "--to", "file/f")
    outside = volume.volfs("recover", "publish", place, id_, "--to", "../f")
    after = kept(volume, where)
    done = volume.volfs("recover", "publish", place, id_)

    assert failed.returncode == 1
    assert "Not a directory" in failed.stderr
    assert outside.returncode == 2
    assert not (volume.base / "f").exists()
    assert after == before
    assert (done.returncode, (volume.backing / "f").read_bytes()) == (0, b"ours")


@ways
def test_discard(make_volume: Make, where: str, mode: str) -> None:
    """Only with --yes, and only that file."""
    volume = make_volume(mode=mode)
    with_kept_files(volume, {"a": b"unwanted", "b": b"wanted"})
    files = {file["path"]: file["id"] for file in kept(volume, where)}
    place = target(volume, where)
    asked = volume.volfs("recover", "discard", place, files["a"])
    in_between = len(staged(volume))
    done = volume.volfs("recover", "discard", place, files["a"], "--yes")
    left = kept(volume, where)
    published = volume.volfs("recover", "publish", place, files["b"])

    assert asked.returncode == 2
    assert "(a, 8 B) exists nowhere else; to delete it, add --yes" in asked.stderr
    assert in_between == 2
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [file["path"] for file in left] == ["b"]
    assert published.returncode == 0
    assert sorted(path.name for path in volume.backing.iterdir() if path.name != ".volfs") == ["b"]


@both
def test_ids(make_volume: Make, where: str) -> None:
    """An id that nothing begins with, or more than one file, changes nothing."""
    volume = make_volume()
    with_kept_files(volume, {f"f{number}": b"x" for number in range(17)})  # two of them begin alike
    files = kept(volume, where)
    place = target(volume, where)
    first = sorted(file["id"][0] for file in files)
    twice = next(a for a, b in pairwise(first) if a == b)
    unknown = volume.volfs("recover", "discard", place, "xyz", "--yes")
    ambiguous = volume.volfs("recover", "discard", place, twice, "--yes")
    empty = volume.volfs("recover", "discard", place, "", "--yes")

    assert (unknown.returncode, unknown.stderr) == (1, "volfs: there is no kept file 'xyz'\n")
    assert ambiguous.returncode == 2
    assert f"kept files begin with '{twice}'" in ambiguous.stderr
    assert empty.returncode == 1
    assert kept(volume, where) == files
    for file in files:
        assert volume.volfs("recover", "discard", place, file["id"], "--yes").returncode == 0


def test_names_that_are_no_text(make_volume: Make) -> None:
    """Bytes that are no UTF-8 and line feeds come through JSON and back, and do not break the table."""
    volume = make_volume()
    names = [os.fsdecode(b"\xff"), "a\nb", "é"]
    with_kept_files(volume, {name: name.encode("utf-8", "surrogateescape") for name in names})
    files = kept(volume, "mount")
    table = volume.volfs("recover", "list", str(volume.mountpoint))
    for file in files:
        assert volume.volfs("recover", "publish", str(volume.mountpoint), file["id"]).returncode == 0

    assert sorted(file["path"] for file in files) == sorted(names)
    assert len(table.stdout.splitlines()) == 4
    for name in names:
        assert (volume.backing / name).read_bytes() == os.fsencode(name)


def test_more_than_a_list_holds(make_volume: Make) -> None:
    """The control plane's list is cut below 64 KiB and says so; without a daemon it is whole."""
    volume = make_volume()
    files = {f"{number:03}-{'x' * 240}": b"x" for number in range(220)}
    with_kept_files(volume, files)
    done = volume.volfs("recover", "list", str(volume.mountpoint))
    shown = len(done.stdout.splitlines()) - 1

    assert 100 < shown < 220
    assert f"{220 - shown} more are not shown" in done.stderr
    assert len(kept(volume, "directory")) == 220
    for path in staged(volume):
        path.unlink()
    assert volume.volfs("fsck", str(volume.cache_dir)).returncode == 4


def test_a_dead_mount(make_volume: Make) -> None:
    """Nobody is there to answer: the line says what to name instead."""
    volume = make_volume()
    volume.mount()
    volume.kill()
    done = volume.volfs("recover", "list", str(volume.mountpoint))
    volume.remount()

    assert done.returncode == 1
    assert "has died; mount it again, or name its cache directory" in done.stderr


def test_a_directory_in_use_is_asked_through_its_mount(make_volume: Make) -> None:
    """The daemon has the journal: naming its cache directory is as good as naming the mount."""
    volume = make_volume()
    with_kept_files(volume, {"f": b"x"})
    done = volume.volfs("recover", "list", str(volume.cache_dir))
    (file,) = kept(volume, "mount")
    published = volume.volfs("recover", "publish", str(volume.cache_dir), file["id"])

    assert file["id"][:12] in done.stdout
    assert published.returncode == 0
    assert (volume.mountpoint / "f").read_bytes() == b"x"


def test_a_directory_that_is_none(make_volume: Make) -> None:
    """Neither a mount nor a cache directory is wrong usage, and leaves no lock file behind."""
    volume = make_volume()
    done = volume.volfs("recover", "list", str(volume.backing))
    assert done.returncode == 2
    assert "is neither a volfs mount nor the cache directory of one" in done.stderr
    assert list(volume.backing.iterdir()) == []
