"""Files made in background mode over a network: at local speed, and without hiding what others made."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.volume import PLAIN, Volume, eventually

_FAULTY = Path(__file__).with_name("faulty_store.py")

pytestmark = pytest.mark.skipif(PLAIN, reason="a plain directory has no daemon")


class Making:
    """A mount whose store is taken for one over a network, and a directory in it in which files are made."""

    def __init__(self, volume: Volume, faults: Path) -> None:
        self.volume = volume
        self._faults = faults
        volume.mount_by(_FAULTY)
        self.here, self.back = volume.mountpoint / "d", volume.backing / "d"
        self.back.mkdir()
        (self.back / "old").write_bytes(b"old")
        self._made = 0

    def make(self, count: int) -> None:
        """Files with bytes, in the way of a program that saves many."""
        for _ in range(count):
            self._made += 1
            (self.here / f"f{self._made}").write_bytes(b"%d" % self._made)

    def warm_up(self) -> None:
        """Make so many that the directory has been listed, just now."""
        listings = self.calls("scan d")
        while self.calls("scan d") == listings or self.calls("directory.names d") < 2:
            self.make(1)
        self.make(2)

    def calls(self, start: str) -> int:
        """How often the store was called so."""
        return sum(line.startswith(start) for line in (self._faults / "calls").read_text().splitlines())


@pytest.fixture
def making(make_volume: Callable[..., Volume], tmp_path: Path, guarded: None) -> Making:
    """In background mode."""
    environment = {"VOLFS_TEST_FAULTS": str(tmp_path), "VOLFS_TEST_STORE": "remote"}
    options = ("--freshness", "20", "--commit-interval", "60")  # a busy machine takes its time
    return Making(make_volume(*options, mode="background", environment=environment), tmp_path)


def test_files_are_made_without_a_question(making: Making) -> None:
    """W5a: neither the lookup nor the creation asks, and all is committed."""
    making.warm_up()
    asked = making.calls("stat d/f")
    making.make(50)
    assert making.calls("stat d/f") == asked
    making.volume.settle()
    for number in range(1, 50):
        assert (making.back / f"f{number}").read_bytes() == b"%d" % number
    assert making.volume.status()["conflicts"] == 0


@pytest.mark.parametrize("ask", [os.stat, lambda path: os.close(os.open(path, os.O_RDONLY))])
def test_readers_find_what_others_made_meanwhile(making: Making, ask: Callable[[Path], object]) -> None:
    """R1: the store is asked for whoever does not create, in the same thread, in the middle of it."""
    making.warm_up()
    (making.back / "theirs").write_bytes(b"theirs")
    ask(making.here / "theirs")
    assert (making.here / "theirs").read_bytes() == b"theirs"
    with pytest.raises(FileNotFoundError):
        ask(making.here / "nothing")
    (making.back / "nothing").write_bytes(b"now")
    ask(making.here / "nothing")


def test_names_on_the_way_are_asked_for(making: Making) -> None:
    """R1: a directory that others made is found by who creates a file in it."""
    making.warm_up()
    (making.back / "sub").mkdir()
    (making.here / "sub" / "f").write_bytes(b"x")
    making.volume.settle()
    assert (making.back / "sub" / "f").read_bytes() == b"x"


def test_what_is_there_is_opened(making: Making) -> None:
    """O_EXCL is refused, an append appends."""
    making.warm_up()
    with pytest.raises(FileExistsError):
        os.open(making.here / "old", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with (making.here / "old").open("ab") as file:
        file.write(b", and more")
    making.volume.settle()
    assert (making.back / "old").read_bytes() == b"old, and more"


@pytest.mark.parametrize("flags", [0, os.O_EXCL, os.O_APPEND, os.O_TRUNC])
def test_what_others_made_meanwhile_is_not_lost(making: Making, flags: int) -> None:
    """W7: who does not empty what he opens leaves it, and his own bytes go beside it."""
    making.warm_up()
    (making.back / "g").write_bytes(b"theirs")
    fd = os.open(making.here / "g", os.O_WRONLY | os.O_CREAT | flags, 0o644)
    os.write(fd, b"ours")
    os.close(fd)
    making.volume.settle()
    beside = [path.read_bytes() for path in making.back.glob("g.conflict-*")]
    if flags == os.O_TRUNC:
        assert ((making.back / "g").read_bytes(), beside) == (b"ours", [])
    else:
        assert ((making.back / "g").read_bytes(), beside) == (b"theirs", [b"ours"])


def test_a_name_that_this_mount_made_is_known(making: Making) -> None:
    """W1: also when it was committed and the kernel and the mount have forgotten it."""
    making.warm_up()
    (making.here / "mine").write_bytes(b"mine")
    making.volume.settle()
    Path("/proc/sys/vm/drop_caches").write_text("2")
    with pytest.raises(OSError, match="exists") as raised:
        os.open(making.here / "mine", os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    assert raised.value.errno == errno.EEXIST
    eventually(lambda: (making.here / "mine").read_bytes() == b"mine", 5)
