"""Random reads of 4 KiB in a cold 2 GiB file: what they take, and how much is fetched for them."""

from __future__ import annotations

import os
import random
import time
from typing import Final

from tests.bench.data import LARGE, first_difference
from tests.bench.scenario import Scenario
from tests.bench.settings import KIB, MIB
from tests.bench.targets import NOISE, Row, at_most, within
from tests.bench.trial import Trial, WrongBytes

__all__ = ["SCENARIO"]

_READ_BYTES: Final = 4 * KIB
_CUT_S: Final = 40.0


def _work(trial: Trial) -> None:
    path = trial.files / LARGE
    draw = random.Random(trial.round)  # the same for every system
    blocks = trial.sizes.large_bytes // _READ_BYTES
    offsets = [draw.randrange(blocks) * _READ_BYTES for _ in range(trial.sizes.random_reads)]
    pieces = {}
    with trial.measure("random") as measured:
        start = time.perf_counter()
        handle = os.open(path, os.O_RDONLY)
        for offset in offsets:
            pieces[offset] = os.pread(handle, _READ_BYTES, offset)
            if time.perf_counter() - start > _CUT_S:
                measured.cut = True
                break
        measured.seconds = time.perf_counter() - start
    os.close(handle)
    if first_difference(pieces, trial.originals / LARGE) is not None:
        raise WrongBytes("other bytes at a random offset")
    measured.value = len(pieces) / measured.seconds
    measured.details["MiB fetched per 100 reads"] = measured.read_bytes / MIB / len(pieces) * 100


SCENARIO = Scenario(
    name="random",
    rows=(
        Row(
            key="random",
            title="1,000 random reads of 4 KiB in 2 GiB",
            unit="reads/s",
            target="8 MiB or less fetched per 100; no slower than directly (5 % for noise)",
            conditions=(
                at_most("random.MiB fetched per 100 reads", 8),
                within("random", 1 / NOISE, "random", "direct"),
            ),
        ),
    ),
    systems=("volfs", "rclone", "juicefs", "direct"),
    work=_work,
    data="large",
)
