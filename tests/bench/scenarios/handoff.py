"""Reading a cached file by the local path that the mount hands out, beside reading a local file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from tests.bench.data import LARGE, first_difference
from tests.bench.reading import read_whole, together
from tests.bench.scenario import Scenario
from tests.bench.targets import Row, at_least
from tests.bench.trial import Trial, WrongBytes, drop_caches

__all__ = ["SCENARIO"]

_ATTRIBUTE: Final = "user.volfs.path"
_RATIO: Final = "of a local file"

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
    local = trial.originals / LARGE
    read_whole(trial.files / LARGE)
    try:
        path = _handed_out(trial.files / LARGE)
    except OSError as error:
        trial.fail("handoff", f"no {_ATTRIBUTE}: {os.strerror(error.errno or 0)}")
        return
    # Pages that a write left are larger than those that a read brings, and copied faster.
    drop_caches()
    for one in (path, local):
        read_whole(one)
    with trial.measure("handoff") as measured:
        # In turn: two passes over the same file differ by more than the two files do.
        pairs = [(read_whole(path), read_whole(local)) for _ in range(_TIMES)]
    ours, theirs = (together(side) for side in zip(*pairs, strict=True))
    measured.seconds, measured.value = ours.seconds, ours.mbps
    measured.details[_RATIO] = ours.mbps / theirs.mbps
    if first_difference(ours.pieces, local) is not None:
        raise WrongBytes("the handed-out file differs")


SCENARIO = Scenario(
    name="handoff",
    rows=(
        Row(
            key="handoff",
            title="hand-off path, 2 GiB, warm",
            unit="MB/s",
            target="95 % of a local file",
            conditions=(at_least(f"handoff.{_RATIO}", 0.95),),
        ),
    ),
    systems=("volfs",),
    work=_work,
    data="large",
)
