"""Named crash points: a daemon dies there, and the next one makes it good (W2, W5, W6).

The points are found in the sources. `make soak` kills a daemon at each, so that a
new one is met as soon as it stands there, and one that no daemon passes fails.
Here are those between the steps of a commit and of a rename, where the order
decides; `VOLFS_CRASH_POINTS=all` has them all.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak import crashing
from tests.soak.arenas import mounted
from tests.soak.node import MODES
from tests.soak.points import points

_SHORT = (
    *("stage.acknowledged", "upload.synced", "show.exchanged", "show.after"),
    *("commit.shown", "commit.cleared", "rename.moved"),
)
_POINTS = points() if os.environ.get("VOLFS_CRASH_POINTS") == "all" else _SHORT


@pytest.mark.timeout(115)
@pytest.mark.parametrize("point", _POINTS)
def test_crash_point(volumes_base: Path, guarded: None, point: str) -> None:
    """A daemon killed at the point loses nothing acknowledged, tears nothing, leaves nothing about."""
    for mode in sorted(MODES, key=lambda mode: crashing.order(point, mode)):
        with mounted(volumes_base, mode, seed=17) as arena:
            if crashing.die_at(arena, arena.nodes[0], point):
                return
    pytest.fail(f"no daemon passes {point}: it is dead, or the work misses it")


def test_points_are_found() -> None:
    """The enumeration finds what stands in the sources, in every part that has points."""
    parts = {point.split(".")[0] for point in points()}
    assert {"commit", "show", "upload", "index", "evict", "keep"} <= parts
    assert set(_SHORT) <= set(points())
