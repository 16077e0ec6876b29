"""The client's loader over many small files: two shuffled epochs, and the way back into the second one.

Beside it the same program on the local directory.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from tests.bench.loading import BATCH, WORKERS
from tests.bench.scenario import Scenario
from tests.bench.settings import REPOSITORY
from tests.bench.targets import Row, at_least
from tests.bench.trial import Trial

__all__ = ["SCENARIO"]

#: What the reference product publishes for copying the same files by hand, with 256 processes.
_MARK: Final = 699


def _work(trial: Trial) -> None:
    paths = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "client" / "src")))
    command: list[str] = [sys.executable, "-P", "-m", "tests.bench.loading", str(trial.files)]
    with trial.start(command, environment={"PYTHONPATH": paths}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise OSError("the loader could not begin")
        for row in ("samples", "samples-again", "resume"):
            with trial.measure(row) as measured:
                process.stdin.write("go\n")
                process.stdin.flush()
                said = process.stdout.readline().split()
                if len(said) != 2:
                    raise OSError("the loader failed")
                measured.seconds = float(said[1])
                measured.value = measured.seconds if row == "resume" else int(said[0]) / measured.seconds
        process.wait()


SCENARIO = Scenario(
    name="loading",
    rows=(
        Row(
            key="samples",
            title=f"DataLoader, {WORKERS} workers, batches of {BATCH}, epoch 1",
            unit="files/s",
            target=f"{_MARK} files/s or more",
            conditions=(at_least("samples", _MARK),),
        ),
        Row(key="samples-again", title="... epoch 2", unit="files/s", target="none"),
        Row(
            key="resume",
            title="... from 90 % of an epoch to the first batch",
            unit="s",
            target="none",
            higher_is_better=False,
        ),
    ),
    systems=("volfs", "local"),
    work=_work,
    data="small",
)
