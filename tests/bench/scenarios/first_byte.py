"""The time from open to the first byte of a cold file, in round trips to the store.

The directory is known before: its own lookup is not the file's.
"""

from __future__ import annotations

import os
import time

from tests.bench.data import LARGE, first_difference
from tests.bench.scenario import Scenario
from tests.bench.settings import LATENCY_S
from tests.bench.targets import Row, at_most
from tests.bench.trial import Trial, WrongBytes

__all__ = ["SCENARIO"]


def _work(trial: Trial) -> None:
    trial.files.stat()
    with trial.measure("first-byte") as measured:
        start = time.perf_counter()
        handle = os.open(trial.files / LARGE, os.O_RDONLY)
        byte = os.pread(handle, 1, 0)
        measured.seconds = time.perf_counter() - start
    os.close(handle)
    if first_difference({0: byte}, trial.originals / LARGE) is not None:
        raise WrongBytes("another first byte")
    # Whole ones: what is left over is the transfer of the first block and the work on both sides.
    measured.value = float(measured.seconds // LATENCY_S)
    measured.details["ms"] = measured.seconds * 1000


SCENARIO = Scenario(
    name="first-byte",
    rows=(
        Row(
            key="first-byte",
            title="first byte of a cold file",
            unit="trips",
            target="4 round trips or fewer",
            conditions=(at_most("first-byte", 4),),
            higher_is_better=False,
        ),
    ),
    systems=("volfs", "rclone", "juicefs", "bindfs", "direct"),
    work=_work,
    data="large",
)
