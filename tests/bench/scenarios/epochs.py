"""One sequential reader of a 2 GiB file: cold; again with valid pages; again from the disk cache alone."""

from __future__ import annotations

from typing import Final

from tests.bench.data import LARGE, first_difference
from tests.bench.reading import Read, read_whole, together
from tests.bench.results import Measurement
from tests.bench.scenario import Scenario
from tests.bench.targets import NOISE, Row, ahead_of, at_least, at_most, within
from tests.bench.trial import Trial, WrongBytes, drop_caches

__all__ = ["SCENARIO"]

#: One stream of 100 MB/s needs 21 s for the file; where nothing else is to come, its rate is known sooner.
_CUT_S: Final = 8.0

#: At memory speed the file takes a third of a second, too short for one reading.
_TIMES: Final = 5


def _note(trial: Trial, measured: Measurement, read: Read) -> None:
    measured.seconds, measured.value, measured.cut = read.seconds, read.mbps, read.cut
    offset = first_difference(read.pieces, trial.originals / LARGE)
    if offset is not None:
        raise WrongBytes(f"other bytes at {offset}")


def _work(trial: Trial) -> None:
    again = bool(trial.wanted & {"pages", "disk"}) and trial.system.keeps_on_disk
    with trial.measure("sequential") as measured:
        read = read_whole(trial.files / LARGE, None if again else _CUT_S)
    _note(trial, measured, read)
    if not again:
        return
    with trial.measure("pages") as measured:
        read = together([read_whole(trial.files / LARGE) for _ in range(_TIMES)])
    _note(trial, measured, read)
    if "read" in measured.calls:
        measured.details["READ requests"] = measured.calls["read"]
    if "disk" in trial.wanted:
        drop_caches()
        with trial.measure("disk") as measured:
            read = read_whole(trial.files / LARGE)
        _note(trial, measured, read)


SCENARIO = Scenario(
    name="epochs",
    rows=(
        Row(
            key="sequential",
            title="one sequential reader, 2 GiB, cold",
            unit="MB/s",
            target="700 MB/s or more; ahead of rclone and JuiceFS",
            conditions=(at_least("sequential", 700), ahead_of("sequential", "rclone", "juicefs")),
        ),
        Row(
            key="pages",
            title="second epoch, pages valid",
            unit="MB/s",
            target="0 READ requests; the rate of JuiceFS (5 % for noise)",
            conditions=(
                at_most("pages.READ requests", 0, counted_with="pages"),
                within("pages", 1 / NOISE, "pages", "juicefs"),
            ),
        ),
        Row(
            key="disk",
            title="second epoch, from the disk cache",
            unit="MB/s",
            target="ahead of rclone and JuiceFS",
            conditions=(ahead_of("disk", "rclone", "juicefs"),),
        ),
    ),
    systems=("volfs", "rclone", "juicefs", "bindfs", "direct"),
    work=_work,
    data="large",
)
