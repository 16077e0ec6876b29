"""A few rounds of `make soak`, in each run of the tests (W2, W5, W6, W7, W8)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak import rounds
from tests.soak.arenas import mounted


@pytest.mark.timeout(110)
def test_rounds_of_killed_daemons(volumes_base: Path, guarded: None) -> None:
    """Six rounds over two nodes: killed one by one, both at once, ended in order; nothing is lost or torn."""
    with mounted(volumes_base, "local", "cached-background", seed=2026) as arena:
        for number, kind in enumerate(("kill", "kill", "both", "stop", "kill", "kill")):
            rounds.run(arena, number, kind, everything=number == 5)
        counts = arena.counts
        assert (counts["rounds"], counts["kills"], counts["stops"]) == (6, 6, 1)
        assert counts["dirty"], "no kill met a file that was being written: the rounds proved nothing"
        assert counts["files"] > 20 and counts["operations"] > 100, counts
