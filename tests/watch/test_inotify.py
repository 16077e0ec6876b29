"""The inotify watcher: who changed what, directories that go and come back, a lost queue."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trio

from volfs.watch.inotify import Event, InotifyWatcher


class Seen:
    """Collects batches and lets a test wait for them."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.overflows = 0
        self._news = trio.Event()

    async def happened(self, events: list[Event]) -> None:
        """A batch."""
        self.events += events
        self._news.set()

    async def overflowed(self) -> None:
        """The kernel dropped events."""
        self.overflows += 1
        self._news.set()

    async def wait_for(self, event: Event) -> None:
        """Until this event was seen."""
        with trio.fail_after(10):
            while event not in self.events:
                await self._news.wait()
                self._news = trio.Event()


@pytest.fixture
def watcher(tmp_path: Path) -> Iterator[InotifyWatcher]:
    """A watcher beneath an empty directory."""
    root = os.open(tmp_path, os.O_PATH)
    made = InotifyWatcher(root)
    yield made
    made.close()
    os.close(root)


@pytest.fixture
async def seen(watcher: InotifyWatcher, nursery: trio.Nursery) -> AsyncIterator[Seen]:
    """What the running watcher hands on."""
    collected = Seen()
    nursery.start_soon(watcher.run, collected.happened, collected.overflowed)
    yield collected
    nursery.cancel_scope.cancel()


async def test_names_and_content(watcher: InotifyWatcher, seen: Seen, tmp_path: Path) -> None:
    """Creation is a change of a name, a write one of content; each says in which directory."""
    (tmp_path / "d").mkdir()
    assert watcher.add(1, b"")
    assert watcher.add(7, b"d")
    (tmp_path / "d/new").touch()
    await seen.wait_for((7, b"new", False))
    (tmp_path / "d/new").write_bytes(b"x")
    await seen.wait_for((7, b"new", True))
    (tmp_path / "d/new").rename(tmp_path / "moved")
    await seen.wait_for((1, b"moved", False))


async def test_a_directory_that_is_gone_is_not_watched(
    watcher: InotifyWatcher, seen: Seen, tmp_path: Path
) -> None:
    """add says so; one that was removed and made again is watched anew."""
    assert not watcher.add(7, b"d")
    (tmp_path / "d").mkdir()
    assert watcher.add(1, b"")
    assert watcher.add(7, b"d")
    (tmp_path / "d").rmdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "mark").touch()
    await seen.wait_for((1, b"mark", False))
    assert watcher.add(7, b"d")
    (tmp_path / "d/new").touch()
    await seen.wait_for((7, b"new", False))


async def test_a_removed_watch_is_silent(watcher: InotifyWatcher, seen: Seen, tmp_path: Path) -> None:
    """FORGET of a directory ends its events."""
    (tmp_path / "d").mkdir()
    watcher.add(1, b"")
    watcher.add(7, b"d")
    watcher.remove(7)
    (tmp_path / "d/new").touch()
    (tmp_path / "mark").touch()
    await seen.wait_for((1, b"mark", False))
    assert not [event for event in seen.events if event[0] == 7]


async def test_a_lost_queue_is_said(watcher: InotifyWatcher, tmp_path: Path, nursery: trio.Nursery) -> None:
    """More events than the kernel keeps: the daemon must look at everything."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    watcher.add(1, b"")
    for k in range(most // 2 + 10):
        os.close(os.open(tmp_path / f"f{k % 100}", os.O_CREAT | os.O_WRONLY))
        os.unlink(tmp_path / f"f{k % 100}")
    seen = Seen()
    nursery.start_soon(watcher.run, seen.happened, seen.overflowed)
    with trio.fail_after(20):
        while not seen.overflows:
            await trio.lowlevel.checkpoint()
    nursery.cancel_scope.cancel()
