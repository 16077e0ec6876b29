"""Files with several names while some of them go: which bytes end up behind which name.

Each was a loss or a false conflict that the kill rounds found.
"""

from __future__ import annotations

import os

import pytest

from tests.conftest import Area

pytestmark = pytest.mark.modes("local", "cached", "background", "cached-background")


def test_one_name_of_a_dirty_file_is_removed(area: Area) -> None:
    """The other one has all bytes, and nothing is taken for a change by others."""
    first, second = area.here / "f", area.here / "c"
    first.write_text("a")
    os.link(first, second)
    with second.open("a") as file:
        file.write(" b")
        file.flush()
        second.unlink()
        file.write(" c")
    area.settle()
    assert os.listdir(area.back) == ["f"]
    assert (area.back / "f").read_text() == "a b c"


def test_one_name_of_a_dirty_file_is_replaced(area: Area) -> None:
    """As with a removal: the rest of its names keep it."""
    first, second, other = area.here / "f", area.here / "c", area.here / "o"
    first.write_text("a")
    os.link(first, second)
    other.write_text("other")
    with second.open("a") as file:
        file.write(" b")
        file.flush()
        other.rename(second)
        file.write(" c")
    area.settle()
    assert sorted(os.listdir(area.back)) == ["c", "f"]
    assert (area.back / "f").read_text() == "a b c"
    assert (area.back / "c").read_text() == "other"


def test_a_new_file_takes_one_name_of_another(area: Area) -> None:
    """It replaces that name; it is not written into the file that had it."""
    first, second = area.here / "f", area.here / "a"
    first.write_text("f")
    os.link(first, second)
    with (area.here / "e").open("w") as file:
        file.write("e")
        file.flush()
        (area.here / "e").rename(second)
    area.settle()
    assert (area.back / "f").read_text() == "f"
    assert (area.back / "a").read_text() == "e"
    assert os.stat(area.back / "f").st_nlink == 1


def test_a_name_that_this_mount_never_looked_up(area: Area) -> None:
    """The bytes belong to the file, whatever the mount knows of its names."""
    first = area.here / "f"
    first.write_text("a")
    area.settle()
    os.link(area.back / "f", area.back / "unseen")
    assert os.stat(first).st_nlink == 2
    with first.open("a") as file:
        file.write(" b")
        file.flush()
        first.unlink()
    area.settle()
    assert (area.back / "unseen").read_text() == "a b"


def test_writes_after_the_only_known_name_is_gone(area: Area) -> None:
    """What has a name in the store has its bytes, also those that come when this mount knows none of it."""
    first = area.here / "f"
    first.write_text("a")
    area.settle()
    os.link(area.back / "f", area.back / "unseen")
    with first.open("a") as file:
        file.write(" b")
        file.flush()
        first.unlink()
        file.write(" c")
        file.flush()
        os.fsync(file.fileno())
        file.write(" d")
    area.settle()
    assert (area.back / "unseen").read_text() == "a b c d"
    assert area.volume.leftovers() == []


def test_a_file_without_any_name_is_scratch(area: Area) -> None:
    """Nothing of it reaches the store, and nothing is left of it."""
    with (area.here / "f").open("w+") as file:
        (area.here / "f").unlink()
        file.write("scratch")
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        assert file.read() == "scratch"
    area.settle()
    assert os.listdir(area.back) == []
    assert area.volume.leftovers() == []


def test_a_name_that_is_found_while_the_file_is_written(area: Area) -> None:
    """The handle lost the only known name, then the other one is looked up: it reads what it wrote."""
    first = area.here / "f"
    first.write_text("a")
    area.settle()
    os.link(area.back / "f", area.back / "other")
    with first.open("a+") as file:
        first.unlink()
        file.write(" b")
        file.flush()
        os.listdir(area.here)
        file.write(" c")
        file.flush()
        os.fsync(file.fileno())
        file.seek(0)
        assert file.read() == "a b c"
    area.settle()
    assert (area.back / "other").read_text() == "a b c"
    assert (area.here / "other").read_text() == "a b c"
