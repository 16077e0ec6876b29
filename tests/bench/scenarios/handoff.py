"""Reading a cached file by the local path that the mount hands out, beside reading a local file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.bench.data import LARGE, first_difference
from tests.bench.reading import read_whole
from tests.bench.scenario import Scenario
from tests.bench.targets import Row, within
from tests.bench.trial import Trial, WrongBytes

__all__ = ["SCENARIO"]

_ATTRIBUTE: Final = "user.volfs.path"

#: At memory speed the file takes a third of a second, too short for one reading.
_TIMES: Final = 5


def _handed_out(path: Path) -> Path:
    """The local path; EAGAIN says that it takes longer than one request should."""
    while True:
        try:
            return Path(os.fsdecode(os.getxattr(path, _ATTRIBUTE)))
        except BlockingIOError:
            continue


def _work(trial: Trial) -> None:
    path = trial.files / LARGE
    read_whole(path)
    if trial.mounted.daemon is not None:
        try:
            path = _handed_out(path)
        except OSError as error:
            trial.fail("handoff", f"no {_ATTRIBUTE}: {os.strerror(error.errno or 0)}")
            return
    read_whole(path)  # warm
    with trial.measure("handoff") as measured:
        reads = [read_whole(path) for _ in range(_TIMES)]
        measured.value = sum(read.count for read in reads) / sum(read.seconds for read in reads) / 1e6
    if first_difference(reads[-1].pieces, trial.originals / LARGE) is not None:
        raise WrongBytes("the handed-out file differs")


SCENARIO = Scenario(
    name="handoff",
    rows=(
        Row(
            key="handoff",
            title="hand-off path, 2 GiB, warm",
            unit="MB/s",
            target="95 % of a local file",
            conditions=(within("handoff", 0.95, "handoff", "local"),),
        ),
    ),
    systems=("volfs", "local"),
    work=_work,
    data="large",
)
