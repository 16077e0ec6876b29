"""What `volfs warm` and `volfs evict` say, and how files are found, without a mount."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from volfs.cli import bulk, warm
from volfs.cli.progress import line
from volfs.cli.status import rows
from volfs.core.spans import block_count, cost_bytes

K = 1 << 10


def everything(paths: list[Path], work: bulk.Ask, jobs: int = 4, room: int | None = None) -> list[bulk.Event]:
    """All that is told, in its order."""
    with bulk.events(paths, work, jobs, room) as events:
        return [event for event in events if event is not None]


def fine(path: str, size: int, part: Callable[[int], None]) -> dict[str, Any]:
    """A control that has nothing to do."""
    return {"size": size, "cached_bytes": size, "complete": True}


def test_files_are_found_once(tmp_path: Path) -> None:
    """R8: below directories and by name, hard links once, symlinks followed only if they were given."""
    (tmp_path / "d/e").mkdir(parents=True)
    for name in "d/f", "d/e/g", "h":
        (tmp_path / name).write_bytes(b"12345")
    (tmp_path / "d/link").hardlink_to(tmp_path / "h")
    (tmp_path / "d/up").symlink_to("..")
    (tmp_path / "given").symlink_to("d/e")
    os.mkfifo(tmp_path / "d/fifo")
    found, *rest = everything([tmp_path / "h", tmp_path / "d", tmp_path / "given"], fine)
    assert found == bulk.Found(3, 15, 0, 0)
    assert rest == [bulk.Done(5, fine("", 5, lambda _: None), 5)] * 3


def test_names_of_any_bytes(tmp_path: Path) -> None:
    """R8: a name that is no text, or has a line break, is a name."""
    for name in b"\xff\xfe", b"a\nb":
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_bytes(b"x")

    def refuse(path: str, size: int, part: Callable[[int], None]) -> dict[str, Any]:
        assert Path(path).exists()
        raise OSError(errno.EIO, "no")

    _, *rest = everything([tmp_path], refuse)
    assert sorted(
        os.path.basename(os.fsencode(event.path)) for event in rest if isinstance(event, bulk.Failed)
    ) == [
        b"a\nb",
        b"\xff\xfe",
    ]


def test_what_has_no_room_is_left_out(tmp_path: Path) -> None:
    """R8: in order; a smaller file may fit where a larger one does not."""
    for name, size in ("a", 100 * K), ("b", 300 * K), ("c", 50 * K):
        (tmp_path / name).write_bytes(bytes(size))
    room = sum(cost_bytes(block_count(size), True, size) for size in (100 * K, 50 * K))
    paths = [tmp_path / name for name in "abc"]
    found, *rest = everything(paths, fine, room=room)
    assert found == bulk.Found(3, 450 * K, 1, 300 * K)
    assert sorted(event.size for event in rest if isinstance(event, bulk.Done)) == [50 * K, 100 * K]


def test_nothing_larger_is_tried_after_enospc(tmp_path: Path) -> None:
    """R8: once a file does not fit, larger ones are not fetched in vain."""
    for i in range(20):
        (tmp_path / f"f{i:02}").write_bytes(bytes(1000 + i))
    log = tmp_path / "log"

    def full(path: str, size: int, part: Callable[[int], None]) -> dict[str, Any]:
        with log.open("a") as file:
            file.write("x")
        raise OSError(errno.ENOSPC, "full")

    events = everything([tmp_path / f"f{i:02}" for i in range(20)], full, jobs=1)
    assert sum(isinstance(event, bulk.Failed) for event in events) == 20
    assert log.read_text() == "x"


def test_a_child_that_dies_is_noticed(tmp_path: Path) -> None:
    """What ends before its time is an error, not an end."""
    (tmp_path / "f").touch()

    def die(path: str, size: int, part: Callable[[int], None]) -> dict[str, Any]:
        os._exit(9)

    with pytest.raises(BrokenPipeError):
        everything([tmp_path], die)


def test_counts() -> None:
    """Each file is complete, partial or absent; the first failures are named, all are counted."""
    tally = warm.Tally()
    tally.take(bulk.Found(16, 400, 1, 50))
    tally.take(bulk.Part(60))
    tally.take(bulk.Done(100, {"size": 100, "cached_bytes": 100, "complete": True}, 40))
    tally.take(bulk.Done(100, {"size": 100, "cached_bytes": 30, "complete": False}, 100))
    tally.take(bulk.Done(90, {"size": 90, "cached_bytes": 0, "complete": False}, 90))
    for i in range(12):
        tally.take(bulk.Failed(f"/m/f{i}", errno.EACCES))
    document = tally.document()
    assert document["complete"] == {"files": 1, "bytes": 100}
    assert document["partial"] == {"files": 1, "bytes": 100}
    assert document["absent"] == {"files": 1, "bytes": 90}
    assert (document["cached_bytes"], tally.done_bytes) == (130, 290)
    assert (document["failed"], len(document["failures"])) == (12, 10)
    assert document["failures"][0] == {"path": "/m/f0", "errno": errno.EACCES, "error": "Permission denied"}


def test_status_tells_of_leases() -> None:
    """R6a: how much is handed out is said, where anything is."""
    document = {"leases": {"count": 2, "bytes": 3 << 20}}
    assert ("handed out", "2 files, 3.0 MiB") in rows(Path("/m"), document)
    assert all(name != "handed out" for name, _ in rows(Path("/m"), {}))


@pytest.mark.parametrize(
    ("done", "text"),
    [
        ((0, 10, 0, 1 << 20, 0.0), "0 of 10 files, 0 B of 1.0 MiB, 0 B/s"),
        ((5, 10, 1 << 19, 1 << 20, 2.0), "5 of 10 files, 512 KiB of 1.0 MiB, 256 KiB/s, 2 s left"),
    ],
)
def test_progress_in_a_line(done: tuple[int, int, int, int, float], text: str) -> None:
    """Files, bytes, rate and time left, where no bar can be drawn."""
    assert line(*done) == text
