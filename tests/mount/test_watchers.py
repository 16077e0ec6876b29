"""What inotify on a mount tells its users."""

from __future__ import annotations

import pytest
from inotify_simple import INotify, flags

from tests.conftest import Area


@pytest.mark.modes("local")
def test_inotify_tells_of_own_changes_and_of_deletions_elsewhere(area: Area) -> None:
    """D6: A directory's watcher sees a file made here, a file's own watcher its removal in the backing."""
    (area.here / "theirs").write_text("x")
    area.settle()
    (area.here / "theirs").read_text()
    with INotify() as inotify:
        inotify.add_watch(area.here, flags.CREATE | flags.DELETE)
        (area.here / "ours").write_text("x")
        assert [event.name for event in inotify.read(timeout=5000)] == ["ours"]
    with INotify() as inotify:
        inotify.add_watch(area.here / "theirs", flags.DELETE_SELF)
        (area.back / "theirs").unlink()
        assert inotify.read(timeout=5000)[0].mask & flags.DELETE_SELF
