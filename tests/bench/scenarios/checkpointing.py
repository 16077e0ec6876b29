"""The client's checkpoints of 1 GiB: how long training stands still, and until the store has all of them.

Beside it the same program on the local directory.
"""

from __future__ import annotations

import os
import sys

from tests.bench.checkpointing import MODES
from tests.bench.scenario import Scenario
from tests.bench.settings import REPOSITORY
from tests.bench.targets import Row
from tests.bench.trial import Trial

__all__ = ["SCENARIO"]

_TITLES = {
    "sync": "CheckpointManager.save of 1 GiB",
    "thread": "... async_save by a thread, blocked",
    "process": "... async_save by a process, blocked",
}


def _work(trial: Trial) -> None:
    paths = os.pathsep.join((str(REPOSITORY), str(REPOSITORY / "client" / "src")))
    size = str(trial.sizes.checkpoint_bytes)
    command: list[str] = [
        sys.executable,
        "-P",
        "-m",
        "tests.bench.checkpointing",
        str(trial.mounted.root),
        size,
    ]
    with trial.start(command, environment={"PYTHONPATH": paths}) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise OSError("the checkpoints could not begin")
        for mode in MODES:
            with trial.measure(f"save-{mode}") as measured:
                process.stdin.write("go\n")
                process.stdin.flush()
                said = process.stdout.readline().split()
                if len(said) != 2:
                    raise OSError("a checkpoint failed")
                measured.value, measured.seconds = map(float, said)
                measured.details["s in all"] = measured.seconds
        process.wait()


SCENARIO = Scenario(
    name="checkpointing",
    rows=tuple(
        Row(key=f"save-{mode}", title=_TITLES[mode], unit="s", target="none", higher_is_better=False)
        for mode in MODES
    ),
    systems=("volfs", "local"),
    work=_work,
)
