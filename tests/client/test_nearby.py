"""Where files are read: a mount that is played by its attributes, local copies, and a real mount."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from volfs_client import LocalPath, VolumeDataset
from volfs_client.listing import Filter, find
from volfs_client.nearby import Nearby

from tests.client.loading import make_files, number
from tests.conftest import Area
from tests.mount.volume import PLAIN


class PlayedMount:
    """Answers attributes as a mount of `root` does, whose cache files are in `cache`."""

    def __init__(self, root: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.cache = root, cache
        self.hints: list[str] = []
        self.asked: list[str] = []
        self.released: list[str] = []
        self.error = 0  # instead of handing out
        self.hears = True
        self.told = 0  # how often something was said
        cache.mkdir()
        monkeypatch.setattr(os, "getxattr", self.get)
        monkeypatch.setattr(os, "setxattr", self.set)

    def get(self, path: Any, name: str) -> bytes:
        if not Path(path).is_relative_to(self.root):
            raise OSError(errno.ENODATA, "no such attribute")
        if name == "user.volfs.status":
            return b"{}"
        own = os.path.relpath(path, self.root)
        if name == "user.volfs.release":
            self.released.append(own)
            return b"1"
        self.asked.append(own)
        if self.error:
            raise OSError(self.error, os.strerror(self.error))
        copy = self.cache / own
        copy.write_bytes(Path(path).read_bytes())
        return os.fsencode(copy)

    def set(self, path: Any, name: str, value: bytes) -> None:
        assert (path, name) == (str(self.root), "user.volfs.prefetch")
        self.told += 1
        if not self.hears:
            raise OSError(errno.EROFS, "read-only")
        self.hints += os.fsdecode(value).split("\0")


@pytest.fixture
def played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedMount:
    """A played mount with 40 files."""
    return PlayedMount(make_files(tmp_path / "files", 40), tmp_path / "cache", monkeypatch)


def names(files: list[int]) -> list[str]:
    """The files' names."""
    return [f"{each:04}" for each in files]


def test_a_mounts_files_are_handed_out(played: PlayedMount) -> None:
    """Items are paths of cache files that know their source, and are not released while somebody has them."""
    items = list(VolumeDataset(played.root, prefetch=0))
    assert [item.source for item in items] == [str(played.root / name) for name in names(list(range(40)))]
    assert all(Path(item).parent == played.cache for item in items)
    assert played.released == [] and played.hints == []


def test_the_order_is_told_ahead_and_not_far(played: PlayedMount) -> None:
    """C6: Hints are the pass's own order, never more than asked for ahead of what is read, and all of it."""
    files = VolumeDataset(played.root, shuffle=True, prefetch=8, transform=number)
    for done, file in enumerate(files):
        assert played.hints[done] == f"{file:04}"
        assert 0 < len(played.hints) - done <= 8
    assert len(played.hints) == 40


def test_what_is_skipped_is_neither_hinted_nor_opened(played: PlayedMount) -> None:
    """C9: A resumed pass, and one of two ranks, say and ask for their own part only."""
    files = VolumeDataset(played.root, shuffle=True, rank=1, world_size=2, batch_size=4, transform=number)
    files.load_state_dict(files.state_dict() | {"consumed": 24})
    seen = names(list(files))
    assert len(seen) == 8 and played.hints == played.asked == played.released == seen


def test_after_a_transform_the_file_is_let_go(played: PlayedMount) -> None:
    """Each file is released when its transform is done, also when that failed."""

    def fail_at_5(path: LocalPath) -> int:
        if number(path) == 5:
            raise RuntimeError("no picture")
        return number(path)

    with pytest.raises(RuntimeError, match="no picture"):
        list(VolumeDataset(played.root, transform=fail_at_5))
    assert played.released == names(list(range(6)))


def test_a_file_that_left_the_cache_is_read_through_the_mount(played: PlayedMount) -> None:
    """C6: Released by another process between two of our calls, it is opened by its own path; once."""
    opened: list[str] = []

    def lose(path: LocalPath) -> bytes:
        opened.append(str(path))
        if str(path) != path.source:
            os.unlink(path)
        return Path(path).read_bytes()

    (first, *_) = VolumeDataset(played.root / "0007", transform=lose)
    assert first == b"x" * 7 and opened == [str(played.cache / "0007"), str(played.root / "0007")]

    def missing(path: LocalPath) -> bytes:
        return Path(path + ".missing").read_bytes()

    with pytest.raises(FileNotFoundError, match=r"cache/0007\.missing"):
        list(VolumeDataset(played.root / "0007", transform=missing))


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EACCES, errno.ENODATA, errno.ENOSPC])
def test_a_mount_that_hands_nothing_out_is_read_through(played: PlayedMount, error: int) -> None:
    """C6: The path itself is right; after some refusals it is not asked any more."""
    played.error = error
    assert [str(item) for item in VolumeDataset(played.root)] == [
        str(played.root / f"{n:04}") for n in range(40)
    ]
    assert len(played.asked) == 16


def test_single_refusals_are_the_files_own(played: PlayedMount, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty files here and there are not handed out; all others still are."""
    real = played.get

    def every_other(path: Any, name: str) -> bytes:
        if name == "user.volfs.path":
            played.error = errno.ENODATA if int(os.path.basename(path)) % 2 else 0
        return real(path, name)

    monkeypatch.setattr(os, "getxattr", every_other)
    items = list(VolumeDataset(played.root))
    assert [item == item.source for item in items] == [False, True] * 20


def test_a_cache_that_is_out_of_sight_is_not_used(
    played: PlayedMount, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a container that sees the mount and not the cache directory, the path itself is right."""
    real = played.get

    def elsewhere(path: Any, name: str) -> bytes:
        answer = real(path, name)
        return b"/nowhere/17" if name == "user.volfs.path" else answer

    monkeypatch.setattr(os, "getxattr", elsewhere)
    assert [item == item.source for item in VolumeDataset(played.root)] == [True] * 40


def test_a_mount_that_does_not_listen_is_told_no_more(played: PlayedMount) -> None:
    """A read-only mount takes no hints: files come all the same."""
    played.hears = False
    assert len(list(VolumeDataset(played.root, prefetch=4))) == 40
    assert played.hints == [] and played.told == 1


def test_reading_through_can_be_asked_for(played: PlayedMount) -> None:
    """`handoff=False`: hints, and no cache files."""
    assert all(item == item.source for item in VolumeDataset(played.root, handoff=False))
    assert played.asked == [] and len(played.hints) == 40


def test_errors_of_a_file_are_its_own(played: PlayedMount) -> None:
    """C28: EIO is no reason to try another way."""
    played.error = errno.EIO
    with pytest.raises(OSError, match="Input/output") as caught:
        list(VolumeDataset(played.root))
    assert caught.value.errno == errno.EIO


# -- local copies ------------------------------------------------------------------


def copied(directory: Path, cache: Path, **options: Any) -> list[LocalPath]:
    """The items of a pass with local copies."""
    return list(VolumeDataset(directory, cache_dir=cache, **options))


def test_local_copies_are_made_once(tmp_path: Path) -> None:
    """The second pass, and another process's, finds them; names keep their suffix, bytes are the file's."""
    directory = make_files(tmp_path / "files", 6)
    (directory / "a.jpg").write_bytes(b"picture")
    cache = tmp_path / "cache"
    first = copied(directory, cache)
    assert [Path(item).read_bytes() for item in first] == [Path(item.source).read_bytes() for item in first]
    assert all(Path(item).is_relative_to(cache) for item in first) and first[-1].endswith(".jpg")
    times = [os.stat(item).st_mtime_ns for item in first]
    assert copied(directory, cache) == first
    assert [os.stat(item).st_mtime_ns for item in first] == times
    assert len([path for path in cache.rglob("*") if path.is_file()]) == 7


def test_a_changed_file_is_copied_anew(tmp_path: Path) -> None:
    """C6: Another size or mtime is another copy."""
    directory, cache = make_files(tmp_path / "files", 3), tmp_path / "cache"
    (before,) = copied(directory / "0002", cache)
    os.utime(directory / "0002", ns=(1, 1))
    (after,) = copied(directory / "0002", cache)
    assert after != before and Path(after).read_bytes() == b"xx"


def test_a_full_disk_is_read_past(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without room for copies files are read where they are: one warning, and nothing half done stays."""
    directory, cache = make_files(tmp_path / "files", 4), tmp_path / "cache"
    _replace_fails(monkeypatch, OSError(errno.ENOSPC, "no room"))
    with pytest.warns(UserWarning, match="no room") as caught:
        items = copied(directory, cache)
    assert [str(item) for item in items] == [item.source for item in items] and len(caught) == 1
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    _replace_fails(monkeypatch, OSError(errno.EIO, "broken"))
    with pytest.raises(OSError, match="broken"):
        copied(directory, cache)


def _replace_fails(monkeypatch: pytest.MonkeyPatch, error: OSError) -> None:
    def replace(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, "replace", replace)


def test_a_file_that_is_being_written_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What changed while it was copied is no copy of anything."""
    directory, cache = make_files(tmp_path / "files", 3), tmp_path / "cache"
    real: Callable[..., Any] = os.makedirs

    def grow(*given: Any, **named: Any) -> None:
        (directory / "0002").write_bytes(b"longer")
        real(*given, **named)

    monkeypatch.setattr(os, "makedirs", grow)
    (item,) = copied(directory / "0002", cache)
    assert item == item.source
    assert [path for path in cache.rglob("*") if path.is_file()] == []


# -- a real mount ------------------------------------------------------------------


@pytest.mark.skipif(PLAIN, reason="a plain directory hands nothing out")
@pytest.mark.modes("cached")
def test_on_a_mount(area: Area) -> None:
    """Files of a mount come from its cache, with the right bytes; empty ones, and all without, through it."""
    make_files(area.here, 12)
    area.settle()
    files = VolumeDataset(area.here, shuffle=True, prefetch=4, rank=0, world_size=1)
    items = list(files)
    assert sorted(number(item) for item in items) == list(range(12))
    for item in items:
        assert Path(item).read_bytes() == Path(item.source).read_bytes()
        assert Path(item).is_relative_to(area.volume.cache_dir) is (number(item) > 0)
    assert area.volume.status()["leases"]["count"] == 11

    def read(path: LocalPath) -> int:
        return len(Path(path).read_bytes())

    again = VolumeDataset(area.here, transform=read)
    assert list(again) == list(range(12))
    assert area.volume.status()["leases"]["count"] == 0
    (area.here / "0003").unlink()
    with pytest.raises(FileNotFoundError, match="0003"):
        list(again)


def test_only_what_lies_on_a_mount_is_hinted(tmp_path: Path, played: PlayedMount) -> None:
    """Of a data set of several roots, each is treated as what it is."""
    plain = make_files(tmp_path / "plain", 3)
    listing = find([plain, played.root], Filter())
    nearby = Nearby(listing, iter(range(len(listing))), 100, None, True)
    placed = [nearby.place(file) for file in listing]
    assert [str(path) for path in placed[:3]] == [str(plain / name) for name in names([0, 1, 2])]
    assert all(Path(path).parent == played.cache for path in itertools.islice(placed, 3, None))
    assert played.hints == names(list(range(40)))
