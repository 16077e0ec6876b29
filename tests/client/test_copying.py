"""Copies of trees: what is kept, what is refused, and what a run that ended early leaves."""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import volfs_client
from volfs_client.copying import backlog, progress, transfer

_SOURCE = str(Path(volfs_client.__file__).parents[1])


def make_tree(root: Path) -> Path:
    """Files, links, modes and times of many kinds."""
    (root / "deep/er/est").mkdir(parents=True)
    (root / "empty").mkdir()
    for number in range(40):
        path = root / f"deep/{number:02}.bin"
        path.write_bytes(bytes([number]) * (number * 1000))
        os.utime(path, ns=(1, 1_600_000_000_123_456_789 + number))
    (root / "deep/er/est/run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "deep/er/est/run.sh").chmod(0o755)
    (root / "deep/er/secret").write_bytes(b"x")
    (root / "deep/er/secret").chmod(0o400)
    (root / "link").symlink_to("deep/er/../er/secret")
    (root / "dangling").symlink_to("nowhere")
    (root / "up").symlink_to("..")
    (root / os.fsdecode(b"no text \xff\n")).write_bytes(b"name")
    (root / ("n" * 255)).write_bytes(b"long name")
    (root / "deep/er").chmod(0o555)
    for path in ("deep/er/est", "deep/er", "deep", "empty"):
        os.utime(root / path, ns=(5, 1_500_000_000_000_000_000))
    return root


def shown(root: Path) -> dict[str, tuple[Any, ...]]:
    """All below a directory: mode, time, and content or where it leads."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        st = path.lstat()
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        found[str(path.relative_to(root))] = (st.st_mode, st.st_mtime_ns, content)
    return found


@pytest.mark.parametrize("jobs", [1, 8])
def test_a_copy_is_what_its_source_is(tmp_path: Path, jobs: int) -> None:
    """C23: Content, modes, times, links, empty directories and names of any bytes; nothing else is left."""
    source, target = make_tree(tmp_path / "a"), tmp_path / "new/b"

    counts = volfs_client.copy_tree(source, target, jobs=jobs)

    assert shown(target) == shown(source)
    assert target.stat().st_mode == source.stat().st_mode
    assert target.stat().st_mtime_ns == source.stat().st_mtime_ns
    assert (counts.files, counts.found, counts.failed, counts.directories) == (47, 47, 0, 5)
    assert counts.bytes == counts.found_bytes == sum(1000 * n for n in range(40)) + 10 + 1 + 4 + 9
    assert counts.listed


def test_what_is_there_is_not_copied_again(tmp_path: Path) -> None:
    """C22: Size and time decide; a mode is mended; "always" and "never" do what they say."""
    source, target = make_tree(tmp_path / "a"), tmp_path / "b"
    volfs_client.copy_tree(source, target)
    inodes = {path: path.lstat().st_ino for path in target.rglob("*")}
    (target / "deep/er/est/run.sh").chmod(0o600)

    again = volfs_client.copy_tree(source, target)
    assert (again.files, again.unchanged, again.bytes) == (0, 47, 0)
    assert again.unchanged_bytes == again.found_bytes
    assert {path: path.lstat().st_ino for path in target.rglob("*")} == inodes
    assert shown(target) == shown(source)

    (source / "deep/07.bin").write_bytes(b"other")
    never = volfs_client.copy_tree(source, target, overwrite="never")
    assert (never.files, never.unchanged) == (0, 47)
    assert (target / "deep/07.bin").read_bytes() != b"other"
    assert volfs_client.copy_tree(source, target).files == 1
    assert shown(target) == shown(source)
    assert volfs_client.copy_tree(source, target, overwrite="always").files == 44  # links are as they were


def test_times_as_coarse_as_the_target_has_them(tmp_path: Path) -> None:
    """A store that keeps whole seconds or microseconds has a copy; one that was touched has none."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"1234")
    target.write_bytes(b"1234")
    os.utime(source, ns=(0, 1_600_000_000_123_456_789))
    for time_ns, same in (
        (1_600_000_000_123_456_789, True),
        (1_600_000_000_123_456_000, True),
        (1_600_000_000_000_000_000, True),
        (1_600_000_001_000_000_000, False),
        (1_600_000_000_123_456_788, False),
    ):
        os.utime(target, ns=(0, time_ns))
        assert transfer.is_same(source.stat(), target.stat()) is same, time_ns
    target.write_bytes(b"123")
    os.utime(target, ns=(0, 1_600_000_000_123_456_789))
    assert not transfer.is_same(source.stat(), target.stat())


def test_large_files_and_holes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C23: Ranges of one file are put together right by several threads, and holes stay holes."""
    monkeypatch.setattr(backlog, "RANGE_BYTES", 3 << 20)
    monkeypatch.setattr("volfs_client.copying.crew.RANGE_BYTES", 3 << 20)
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    block = os.urandom(1 << 20)
    with (source / "large").open("wb") as file:
        for number in range(17):
            file.write(block[number:] + block[:number])
    with (source / "holes").open("wb") as file:
        file.truncate(64 << 20)
        for offset in (5 << 20, 40 << 20):
            file.seek(offset)
            file.write(block[:70_000])
    (source / "hole").touch()
    os.truncate(source / "hole", 1 << 33)

    counts = volfs_client.copy_tree(source, target, jobs=5)

    assert (target / "large").read_bytes() == (source / "large").read_bytes()
    assert (target / "holes").read_bytes() == (source / "holes").read_bytes()
    assert (target / "holes").stat().st_blocks <= (source / "holes").stat().st_blocks + 16
    assert (target / "hole").stat().st_size == 1 << 33
    assert counts.bytes == (17 << 20) + (64 << 20) + (1 << 33)
    assert counts.files == 3


def test_one_file_and_links_that_are_given(tmp_path: Path) -> None:
    """A file is copied to the name given; a link that is given is followed."""
    (tmp_path / "f").write_bytes(b"f")
    (tmp_path / "link").symlink_to("f")
    volfs_client.copy_tree(tmp_path / "link", tmp_path / "to/g")
    assert (tmp_path / "to/g").read_bytes() == b"f"
    assert not (tmp_path / "to/g").is_symlink()


def test_what_cannot_be_is_said_before(tmp_path: Path) -> None:
    """A missing source, a target in its source, and targets of the other kind: the true errno, no work."""
    (tmp_path / "d").mkdir()
    (tmp_path / "f").touch()
    (tmp_path / "into").symlink_to("d")
    for src, dst, number in (
        ("missing", "x", errno.ENOENT),
        ("d", "d", errno.EINVAL),
        ("d", "d/sub/e", errno.EINVAL),
        ("d", "into/sub", errno.EINVAL),
        ("f", "f", errno.EINVAL),
        ("d", "f", errno.ENOTDIR),
        ("f", "d", errno.EISDIR),
    ):
        with pytest.raises(OSError) as caught:
            volfs_client.copy_tree(tmp_path / src, tmp_path / dst)
        assert caught.value.errno == number, (src, dst)
    assert sorted(os.listdir(tmp_path)) == ["d", "f", "into"]
    assert os.listdir(tmp_path / "d") == []
    for wrong in ({"jobs": 0}, {"overwrite": "perhaps"}):
        with pytest.raises(ValueError, match=r"jobs|overwrite"):
            volfs_client.copy_tree(tmp_path / "d", tmp_path / "e", **wrong)  # type: ignore[arg-type]


def test_each_failure_is_named_and_the_others_are_copied(tmp_path: Path) -> None:
    """C24: Special files, and things of another kind in the place of the target."""
    source, target = make_tree(tmp_path / "a"), tmp_path / "b"
    os.mkfifo(source / "pipe")
    (target / "deep/03.bin").mkdir(parents=True)
    (target / "empty").write_bytes(b"in the way")

    with pytest.raises(volfs_client.CopyFailed) as caught:
        volfs_client.copy_tree(source, target)

    assert {(os.path.relpath(path, source), error.errno) for path, error in caught.value.failed} == {
        ("pipe", errno.EOPNOTSUPP),
        ("deep/03.bin", errno.EISDIR),
        ("empty", errno.ENOTDIR),
    }
    assert "a named pipe" in str(caught.value)
    kept = {"pipe", "deep/03.bin", "empty"}
    assert {k: v for k, v in shown(target).items() if k not in kept} == {
        k: v for k, v in shown(source).items() if k not in kept
    }


def test_a_source_that_changes_is_copied_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C21: Once: the new content. Whenever it is read: an error, and nothing at the target."""
    source, target = tmp_path / "a", tmp_path / "b"
    source.mkdir()
    changes = {"once": 1, "always": 99}
    for name in changes:
        (source / name).write_bytes(b"old" * 10)
    move = transfer.Transfer.move

    def changing(self: transfer.Transfer, *arguments: Any) -> None:
        move(self, *arguments)
        name = os.path.basename(self.source)
        if changes[name]:
            changes[name] -= 1
            with open(self.source, "ab") as file:
                file.write(b"new")

    monkeypatch.setattr(transfer.Transfer, "move", changing)
    with pytest.raises(volfs_client.CopyFailed) as caught:
        volfs_client.copy_tree(source, target)

    assert [(os.path.basename(p), e.errno) for p, e in caught.value.failed] == [("always", errno.EBUSY)]
    assert changes["always"] == 96
    assert (target / "once").read_bytes() == b"old" * 10 + b"new"
    assert os.listdir(target) == ["once"]


def test_memory_is_bounded_while_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Listing pauses when enough waits, in large directories and between small ones; all is copied."""
    source = tmp_path / "a"
    for directory in range(64):
        (source / str(directory)).mkdir(parents=True)
        for number in range(5 if directory < 60 else 100):
            (source / f"{directory}/{number}").touch()
    monkeypatch.setattr(backlog, "_AHEAD", 30)
    monkeypatch.setattr("volfs_client.copying.crew._BATCH", 10)
    most = 0
    put = backlog.Backlog.put_batch

    def watched(self: backlog.Backlog, batch: list[backlog.Entry]) -> None:
        nonlocal most
        put(self, batch)
        most = max(most, self.waiting)

    monkeypatch.setattr(backlog.Backlog, "put_batch", watched)
    for jobs in (1, 4):
        assert volfs_client.copy_tree(source, tmp_path / f"b{jobs}", jobs=jobs).files == 700
        assert most <= 30 + 10 * jobs


def test_the_report(tmp_path: Path) -> None:
    """The last report has all; a callable hears of the end, in the caller's thread."""
    source = make_tree(tmp_path / "a")
    heard: list[tuple[volfs_client.CopyCounts, int]] = []
    note: Callable[[volfs_client.CopyCounts], None] = lambda c: heard.append((c, threading.get_ident()))  # noqa: E731
    counts = volfs_client.copy_tree(source, tmp_path / "b", progress=note)
    assert heard[-1][0].files == counts.files == 47
    assert {thread for _, thread in heard} == {threading.get_ident()}


class Terminal(io.StringIO):
    """Takes what a terminal would show."""

    def isatty(self) -> bool:
        return True


def test_the_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, written over itself and no wider than the terminal; nothing where there is none."""
    monkeypatch.setenv("COLUMNS", "100")
    terminal, file = Terminal(), io.StringIO()
    for stream in (terminal, file):
        line = progress.Line(stream)
        line(volfs_client.CopyCounts(files=1, bytes=1 << 20, found=3, found_bytes=3 << 20, elapsed_s=2))
        line(
            volfs_client.CopyCounts(
                files=2, bytes=2 << 20, found=4, found_bytes=8 << 20, failed=1, elapsed_s=2, listed=True
            )
        )
        line.end()
    assert file.getvalue() == ""
    first, second = terminal.getvalue().split("\r")[1:]
    assert first.rstrip() == "[######..............] 1/3+ files, 1.0 MiB/3.0 MiB+, 512.0 KiB/s"
    assert second.rstrip() == (
        "[#####...............] 3/4 files, 2.0 MiB/8.0 MiB, 1.0 MiB/s, 1 failed, 6 s left"
    )
    assert len(first) == 99
    assert second.endswith("\n")
    monkeypatch.setenv("COLUMNS", "30")
    terminal = Terminal()
    progress.Line(terminal)(volfs_client.CopyCounts(found=10**9))
    assert len(terminal.getvalue()) == 30
