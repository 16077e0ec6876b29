"""Saves by two ranks on two mounts of one backing: everything that can fail, in each file that is written.

    file             each data file of each rank with 1, 2 and 4 threads, and the metadata
    what goes wrong  ENOSPC, EIO, SIGKILL to the rank that writes it, SIGKILL to the daemon of its mount

In each case the save raises on every rank that lives, nothing is published, the checkpoint before it loads on
both mounts, and the next save leaves nothing of the failed one.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from volfs_client import CheckpointFailed

from tests.client.failing import FailingFiles
from tests.client.gang import Died, Gang
from tests.client.rank_tasks import KillingFiles
from tests.client.test_checkpoint_ranks import roots
from tests.conftest import Area
from tests.mount import mounts
from tests.mount.volume import PLAIN, eventually

pytestmark = [pytest.mark.long, pytest.mark.modes("cached"), pytest.mark.timeout(180)]

_FILES = [
    pytest.param(threads, rank, name, id=f"{threads}-{name}")
    for threads in (1, 2, 4)
    for rank, name in (
        *((rank, f"__{rank}_{file}.distcp") for rank in (0, 1) for file in range(threads)),
        (0, ".metadata"),
    )
]
each_file = pytest.mark.parametrize(("threads", "rank", "name"), _FILES)


@pytest.fixture(scope="module")
def gang(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    with Gang(2, tmp_path_factory.mktemp("ranks")) as made:
        yield made


def _fail(area: Area, gang: Gang, threads: int, rank: int, failing: FailingFiles) -> list[Any]:
    """What each rank says of the save of step 2 that fails."""
    each = roots(area)
    each[rank]["failing"] = failing
    return gang.do("fail", each=each, world=2, step=2, threads=threads)


def _still_at_step_1(area: Area, gang: Gang, saved: str) -> None:
    """Both mounts have the first checkpoint and no other; then step 2 is saved, and both have these two."""
    each = roots(area)
    assert gang.do("steps", each=each) == [[1]] * 2
    assert gang.do("restore", each=each, world=2) == [(1, saved)] * 2
    again = gang.do("save", each=each, world=2, step=2)
    assert gang.do("restore", each=each, world=2) == [(2, again[0])] * 2
    assert sorted(path.name for path in area.back.iterdir()) == ["step-1", "step-2"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["ENOSPC", "EIO"])
@each_file
def test_an_error_in_a_file(area: Area, gang: Gang, threads: int, rank: int, name: str, number: int) -> None:
    """C14: Both ranks raise the errno and say whose it was; nothing is left of the save."""
    (saved, _) = gang.do("save", each=roots(area), world=2, step=1)
    failed = _fail(area, gang, threads, rank, FailingFiles(name, number))

    assert [type(one) for one in failed] == [CheckpointFailed] * 2, failed
    assert [(one.errno, list(one.failures)) for one in failed] == [(number, [rank])] * 2
    assert [path.name for path in area.back.iterdir()] == ["step-1"]
    _still_at_step_1(area, gang, saved)


@each_file
def test_the_rank_of_a_file_is_killed(
    area: Area, gang: Gang, tmp_path: Path, threads: int, rank: int, name: str
) -> None:
    """C14: The other rank raises, rather than wait."""
    (saved, _) = gang.do("save", each=roots(area), world=2, step=1)
    with Gang(2, tmp_path) as doomed:
        ended = _fail(area, doomed, threads, rank, KillingFiles(name))
    assert isinstance(ended[rank], Died), ended
    assert isinstance(ended[1 - rank], Exception) and not isinstance(ended[1 - rank], Died), ended
    _still_at_step_1(area, gang, saved)


@pytest.mark.skipif(PLAIN, reason="there is no daemon to kill")
@each_file
def test_the_daemon_of_a_file_is_killed(area: Area, gang: Gang, threads: int, rank: int, name: str) -> None:
    """C14: Both ranks raise; after the next mount nothing of the save is published by its journal either."""
    (saved, _) = gang.do("save", each=roots(area), world=2, step=1)
    volume = (area.volume, *area.volume.others)[rank]
    failed = _fail(area, gang, threads, rank, KillingFiles(name, volume.pid))

    assert [type(one) for one in failed] == [CheckpointFailed] * 2, failed
    assert [list(one.failures) for one in failed] == [[rank]] * 2
    assert failed[0].errno == failed[1].errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.EIO)
    eventually(lambda: not mounts.is_running(volume.pid), 10, "the killed daemon ended")
    volume.remount()
    _still_at_step_1(area, gang, saved)
    for kept in json.loads(volume.volfs("recover", "list", "--json", str(volume.mountpoint)).stdout)["kept"]:
        assert "/.step-2." in kept["path"], "only files of the failed save are unfinished"
        volume.volfs("recover", "discard", "--yes", str(volume.mountpoint), kept["id"])
