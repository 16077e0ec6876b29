"""Many small files created in background mode: the rate to the last close and until all are committed."""

from __future__ import annotations

import os
import time
from typing import Final

from tests.bench.daemon import wait_until
from tests.bench.scenario import Scenario
from tests.bench.settings import KIB
from tests.bench.targets import Row, at_least, at_most
from tests.bench.trial import Trial, WrongBytes

__all__ = ["SCENARIO"]

_FILE_BYTES: Final = 4 * KIB
_CUT_S: Final = 60.0
#: Twice what is asked for; who takes longer is cut off.
_COMMIT_S: Final = 60.0


def _work(trial: Trial) -> None:
    directory = trial.mounted.root / "new"
    directory.mkdir()
    content = os.urandom(_FILE_BYTES)
    count = 0
    start = time.perf_counter()
    with trial.measure("create") as measured:
        for count in range(1, trial.sizes.created_files + 1):
            handle = os.open(directory / f"f{count:05}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            os.write(handle, content)
            os.close(handle)
            if time.perf_counter() - start > _CUT_S:
                measured.cut = True
                break
    measured.value = count / measured.seconds
    if measured.cut:
        trial.fail("committed", f"not all created within {_CUT_S:g} s")
        return
    with trial.measure("committed") as measured:
        measured.cut = not wait_until(trial.mounted.settled, _COMMIT_S, every_s=0.25)
    measured.value = time.perf_counter() - start
    if measured.cut:
        return
    if trial.system.name == "juicefs":  # its store holds objects of its own
        return
    found = [path for path in (trial.source / "new").iterdir() if path.read_bytes() == content]
    if len(found) != count:
        raise WrongBytes(f"{len(found)} of {count} files are in the store")


SCENARIO = Scenario(
    name="creating",
    rows=(
        Row(
            key="create",
            title="2,000 files of 4 KiB, background, to close",
            unit="files/s",
            target="1,500/s or more",
            conditions=(at_least("create", 1500),),
        ),
        Row(
            key="committed",
            title="... until all are committed",
            unit="s",
            target="30 s or less",
            conditions=(at_most("committed", 30),),
            higher_is_better=False,
        ),
    ),
    systems=("volfs", "rclone", "juicefs"),
    work=_work,
    background=True,
)
