"""Three sequential readers of one cold file, a piece of each in turn."""

from __future__ import annotations

from typing import Final

from tests.bench.data import LARGE, first_difference
from tests.bench.reading import read_streams
from tests.bench.scenario import Scenario
from tests.bench.targets import Row, within
from tests.bench.trial import Trial, WrongBytes

__all__ = ["SCENARIO"]

_STREAMS: Final = 3
_CUT_S: Final = 12.0


def _work(trial: Trial) -> None:
    with trial.measure("streams") as measured:
        read = read_streams(trial.files / LARGE, _STREAMS, _CUT_S)
        measured.seconds, measured.value, measured.cut = read.seconds, read.mbps, read.cut
    offset = first_difference(read.pieces, trial.originals / LARGE)
    if offset is not None:
        raise WrongBytes(f"other bytes at {offset}")


SCENARIO = Scenario(
    name="streams",
    rows=(
        Row(
            key="streams",
            title="3 interleaved sequential streams in 2 GiB",
            unit="MB/s",
            target="80 % of the single stream",
            conditions=(within("streams", 0.8, "sequential"),),
        ),
    ),
    systems=("volfs", "rclone", "juicefs"),
    work=_work,
    data="large",
    needs=("sequential",),
)
