"""W6 for files that change again before what was acknowledged is committed.

The kill rounds found each of these as a loss.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.volume import PLAIN, Volume, eventually

_FAULTY = Path(__file__).with_name("faulty_store.py")

pytestmark = pytest.mark.skipif(PLAIN, reason="a plain directory has no daemon to kill")


class Killed:
    """A mount in background mode, with one acknowledged file, whose store can be made to wait."""

    def __init__(self, volume: Volume, faults: Path) -> None:
        self.volume = volume
        self._gate = faults / "upload.show"
        volume.mount_by(_FAULTY)
        (volume.mountpoint / "f").write_text("first")
        volume.settle()

    def hold_up(self) -> None:
        """From here on commits fail."""
        self._gate.write_text("EIO always")

    def let_go(self) -> None:
        self._gate.unlink()

    def kill_and_mount(self) -> str:
        """What the file holds after a crash and the next mount."""
        self.volume.kill()
        self._gate.unlink(missing_ok=True)
        self.volume.mount()
        self.volume.settle()
        eventually(lambda: self.volume.status()["commit"]["replaying"] == 0, 10, "all is replayed")
        return (self.volume.backing / "f").read_text()


@pytest.fixture(params=["background", "cached-background"])
def killed(
    request: pytest.FixtureRequest, make_volume: Callable[..., Volume], tmp_path: Path
) -> Iterator[Killed]:
    """The mount, in both kinds of staging."""
    made = make_volume(mode=request.param, environment={"VOLFS_TEST_FAULTS": str(tmp_path)})
    yield Killed(made, tmp_path)
    kept = json.loads(made.volfs("recover", "list", "--json", str(made.mountpoint)).stdout)["kept"]
    for entry in kept:
        assert made.volfs("recover", "discard", "--yes", str(made.mountpoint), entry["id"]).returncode == 0


@pytest.mark.parametrize("flags", [os.O_WRONLY | os.O_TRUNC, os.O_WRONLY])
def test_a_change_waits_for_what_was_acknowledged(killed: Killed, flags: int) -> None:
    """W6d: it is committed first. While the store refuses that, so is the change; a crash loses nothing."""
    mount = killed.volume.mountpoint
    killed.hold_up()
    (mount / "f").write_text("second, acknowledged")
    with pytest.raises(OSError, match="Input/output error"):
        _write(mount / "f", flags, b"third")
    assert killed.kill_and_mount() == "second, acknowledged"


def test_a_change_is_made_once_that_is_committed(killed: Killed) -> None:
    """W6d: and the store has the version before the change, for whoever reads it there."""
    mount = killed.volume.mountpoint
    (mount / "f").write_text("second, acknowledged")
    fd = os.open(mount / "f", os.O_WRONLY)
    os.pwrite(fd, b"third!", 0)
    assert (killed.volume.backing / "f").read_text() == "second, acknowledged"
    os.close(fd)
    killed.volume.settle()
    assert (killed.volume.backing / "f").read_text() == "third!, acknowledged"


def _write(path: Path, flags: int, data: bytes) -> None:
    fd = os.open(path, flags)
    try:
        os.pwrite(fd, data, 0)
    finally:
        os.close(fd)


def test_an_append_does_not_wait(killed: Killed) -> None:
    """W6: behind what was acknowledged it spoils nothing: a store that fails does not hold it up."""
    mount = killed.volume.mountpoint
    killed.hold_up()
    (mount / "f").write_text("second")
    fd = os.open(mount / "g", os.O_WRONLY | os.O_CREAT)
    os.write(fd, b"x")
    os.close(fd)
    with (mount / "g").open("a") as file:
        file.write("y")
    killed.let_go()
    assert killed.kill_and_mount() == "second"
    assert (killed.volume.backing / "g").read_text() == "xy"


def test_exclusive_creation_in_background_mode(killed: Killed) -> None:
    """W10: decided at the commit; who comes later goes beside, and both have their bytes."""
    volume = killed.volume
    killed.hold_up()
    fd = os.open(volume.mountpoint / "n", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    os.write(fd, b"ours")
    os.close(fd)
    (volume.backing / "n").write_text("theirs")
    killed.let_go()
    volume.settle()
    assert (volume.backing / "n").read_text() == "theirs"
    (beside,) = volume.backing.glob("n.conflict-*")
    assert beside.read_text() == "ours"


@pytest.mark.parametrize("durable", [True, False])
def test_durable_close(make_volume: Callable[..., Volume], tmp_path: Path, durable: bool) -> None:
    """W5: with --durable-close the name of a closed file is synced, too; else only fsync does that."""
    options = ("--durable-close",) if durable else ()
    volume = make_volume(*options, environment={"VOLFS_TEST_FAULTS": str(tmp_path)}).mount_by(_FAULTY)
    (volume.mountpoint / "f").write_text("bytes")
    calls = [line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()]
    assert ("sync_directory" in calls) is durable
