"""Jobs under torchrun whose ranks are on two mounts of one backing, as on two nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.client import torchrun_ranks
from tests.conftest import Area
from tests.mount.volume import REPOSITORY

pytestmark = [pytest.mark.modes("cached"), pytest.mark.timeout(240)]


def torchrun(ranks: int, answers: Path, what: str, *mounts: Path) -> list[dict[str, Any]]:
    """What each rank of a job answers, on a free port of this machine."""
    answers.mkdir()
    job = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run"),
            *("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--local-addr=localhost"),
            *(f"--nproc-per-node={ranks}", "-m", torchrun_ranks.__name__, answers, what, *mounts),
        ],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "client/src"), str(REPOSITORY)]),
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        said, _ = job.communicate(timeout=100)
    except BaseException:
        job.terminate()  # not SIGKILL: it has ranks to end
        job.communicate()
        raise
    assert job.returncode == 0, said
    return [json.loads((answers / str(rank)).read_text()) for rank in range(ranks)]


@pytest.mark.parametrize(
    "ranks",
    [(2,), pytest.param((2, 4), marks=pytest.mark.long), pytest.param((4, 2), marks=pytest.mark.long)],
)
def test_saved_on_two_nodes_loaded_on_all(area: Area, tmp_path: Path, ranks: tuple[int, ...]) -> None:
    """C15: Right after the save and a barrier all ranks load model, optimizer and step through their own
    mounts; a job of another number of ranks then finds the same, sharded anew.
    """
    mounts = [area.here, area.there]
    state = None
    for number in ranks:
        answers = torchrun(number, tmp_path / str(number), "load" if state else "save", *mounts)
        state = state or answers[0]["saved"]
        assert {one["mount"] for one in answers} == set(map(str, mounts))
        assert [(one["world"], one["before"] == state) for one in answers] == [(number, False)] * number
        found = {key: [7, state] for key in ("written", "kept", "one.pt")}
        assert [one["loaded"] for one in answers] == [found] * number
        mounts.reverse()
