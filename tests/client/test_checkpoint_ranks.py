"""Checkpoints by two ranks, each on a mount of its own over one backing, as on two nodes."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from volfs_client import CheckpointFailed

from tests.client.failing import FailingFiles
from tests.client.gang import Gang
from tests.conftest import Area

pytestmark = [pytest.mark.modes("cached"), pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    with Gang(2, tmp_path_factory.mktemp("ranks")) as made:
        yield made


def roots(area: Area) -> list[dict[str, Any]]:
    """The same directory through each rank's mount."""
    return [{"root": area.here}, {"root": area.there}]


def test_saved_on_two_mounts_loaded_on_all(area: Area, gang: Gang) -> None:
    """Sharded model, optimizer and step, saved by both ranks: equal on both mounts, and on one rank alone."""
    saved = gang.do("save", each=roots(area), world=2, step=7)
    assert isinstance(saved[0], str) and saved[0] == saved[1], saved

    assert gang.do("restore", each=roots(area), world=2) == [(7, saved[0])] * 2
    assert gang.do("restore", each=[{"root": area.there}], world=1) == [(7, saved[0])]


def test_saved_by_one_loaded_by_two(area: Area, gang: Gang) -> None:
    """Other way round: a checkpoint of one rank on its mount is resharded to two on both mounts."""
    (saved,) = gang.do("save", each=[{"root": area.here}], world=1, step=3)
    assert gang.do("restore", each=roots(area), world=2) == [(3, saved)] * 2


def test_saved_in_the_background(area: Area, gang: Gang) -> None:
    """While ranks compute and meet in collectives of their own, saves go on one by one; the last two stay."""
    done = gang.do("save_in_background", each=roots(area), world=2, steps=[1, 2, 3], keep_last=2)
    assert done[0] == (done[1][0], done[0][1]), done
    assert gang.do("steps", each=roots(area)) == [[2, 3]] * 2
    assert gang.do("restore", each=roots(area), world=2) == [(3, done[0][0])] * 2


def _fails(
    area: Area, gang: Gang, rank: int, threads: int, file: int, number: int, mode: str | None = None
) -> None:
    (saved, _) = gang.do("save", each=roots(area), world=2, step=1)
    each = roots(area)
    each[rank]["failing"] = FailingFiles(f"__{rank}_{file}.distcp", number)
    failed = gang.do("fail", each=each, world=2, step=2, threads=threads, background=mode)

    assert [type(one) for one in failed] == [CheckpointFailed] * 2, failed
    assert [(one.errno, list(one.failures)) for one in failed] == [(number, [rank])] * 2
    assert str(each[rank]["root"]) in str(failed[1 - rank]), "each rank writes through its own mount"
    assert [path.name for path in area.back.iterdir()] == ["step-1"]
    assert gang.do("restore", each=roots(area), world=2) == [(1, saved)] * 2


@pytest.mark.parametrize("rank", [0, 1])
def test_an_error_of_one_rank_is_that_of_all(area: Area, gang: Gang, rank: int) -> None:
    """No space in one thread of one rank: the save raises on both, and the checkpoint before it loads."""
    _fails(area, gang, rank, threads=4, file=1, number=errno.ENOSPC)


@pytest.mark.long
def test_saved_by_another_process(area: Area, gang: Gang) -> None:
    """mode="process": the same results; the first save, which starts the process, is in flight as well."""
    done = gang.do(
        "save_in_background",
        each=roots(area),
        world=2,
        steps=[1, 2, 3],
        keep_last=2,
        mode="process",
        within=120,
    )
    assert done[0] == (done[1][0], [True] * 3), done
    assert gang.do("restore", each=roots(area), world=2) == [(3, done[0][0])] * 2
    assert sorted(path.name for path in area.back.iterdir()) == ["step-2", "step-3"]


@pytest.mark.parametrize("mode", ["thread", pytest.param("process", marks=pytest.mark.long)])
def test_an_error_in_the_background(area: Area, gang: Gang, mode: str) -> None:
    """C14: The error of one rank is the error of the Futures of all ranks, in both modes."""
    _fails(area, gang, 1, threads=4, file=0, number=errno.ENOSPC, mode=mode)


@pytest.mark.long
def test_other_numbers_of_ranks(area: Area, tmp_path: Path) -> None:
    """Saved by 1, 2, 3 or 4 ranks on two mounts, restored by each of the others: one and the same state."""
    where = [area.here, area.there, area.here, area.there]
    with Gang(4, tmp_path) as four:
        for saving in (1, 2, 3, 4):
            each = [{"root": root / f"by-{saving}"} for root in where]
            saved = four.do("save", each=each[:saving], world=saving, step=5)
            assert len(set(saved)) == 1 and isinstance(saved[0], str), saved
            for restoring in (1, 2, 3, 4):
                found = four.do("restore", each=each[:restoring], world=restoring)
                assert found == [(5, saved[0])] * restoring
