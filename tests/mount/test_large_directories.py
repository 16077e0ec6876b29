"""Large directories: 200,000 entries in bounded memory, and mass changes that stall nobody."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest

from tests.mount.volume import PLAIN, Volume, eventually

pytestmark = pytest.mark.timeout(240)

_ENTRIES = 200_000

#: A listing of 200,000 entries may cost the daemon what the kernel remembers of it (name, attributes), not
#: more:
#: about 1 KiB an entry in Python objects, and nothing a second time.
_GROWTH = 400 << 20


@pytest.mark.parametrize("mode", [pytest.param("local", marks=pytest.mark.long), "cached"])
def test_two_hundred_thousand_entries(make_volume: Callable[..., Volume], mode: str) -> None:
    """ls -f, ls -l and single stats of 200,000 entries: complete, in seconds, in bounded memory."""
    volume = make_volume(mode=mode)
    (volume.backing / "h").mkdir()
    directory = os.open(volume.backing / "h", os.O_RDONLY)
    for i in range(_ENTRIES):
        os.close(os.open(f"{i}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=directory))
    os.close(directory)
    volume.mount()
    here = volume.mountpoint / "h"
    before = 0 if PLAIN else volume.resident()

    start = time.monotonic()
    assert (here / "150000").stat().st_size == 0
    assert time.monotonic() - start < 1, "a single stat costs a listing"
    for _ in range(2):
        start = time.monotonic()
        with os.scandir(here) as entries:
            seen = {entry.name for entry in entries}
        assert len(seen) == _ENTRIES
        assert time.monotonic() - start < 30
    start = time.monotonic()
    with os.scandir(here) as entries:
        sizes = sum(entry.stat().st_size for entry in entries)
    assert sizes == 0
    assert time.monotonic() - start < 60
    if not PLAIN:
        assert volume.resident() - before < _GROWTH
        volume.unmount()


@pytest.mark.parametrize("mode", ["local", "cached"])
def test_mass_changes_do_not_stall_others(make_volume: Callable[..., Volume], mode: str) -> None:
    """While 10,000 known files change by hand, a stat of another path stays quick; then every change is
    seen.
    """
    volume = make_volume(mode=mode).mount()
    (volume.backing / "many").mkdir()
    (volume.backing / "other").touch()
    for i in range(10_000):
        (volume.backing / "many" / str(i)).touch()
    here = volume.mountpoint / "many"
    with os.scandir(here) as entries:
        assert sum(entry.stat().st_size == 0 for entry in entries) == 10_000
    times = []
    for i in range(10_000):
        (volume.backing / "many" / str(i)).write_bytes(b"x")
        if i % 100 == 0:
            start = time.monotonic()
            (volume.mountpoint / "other").stat()
            (volume.mountpoint / "nothing").exists()
            times.append(time.monotonic() - start)
    times.sort()
    assert times[len(times) // 2] < 0.05, "half of the stats waited"
    assert times[-1] < 2

    def changed() -> int:
        with os.scandir(here) as entries:
            return sum(entry.stat().st_size for entry in entries)

    eventually(lambda: changed() == 10_000, volume.window + 10, "all changes are seen", every=0.2)
