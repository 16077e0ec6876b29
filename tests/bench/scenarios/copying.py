"""`cp -r` of many small files out of the mount, one by one, beside `xargs -P 256 cp` from the store."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.bench.data import first_difference
from tests.bench.scenario import Scenario
from tests.bench.targets import Row, ahead_of, at_least
from tests.bench.trial import Trial, WrongBytes

__all__ = ["SCENARIO"]

#: A peer that copies 30 files a second would need nine minutes a round: its rate is known before that.
_CUT_S: Final = 40.0
_COMPARED: Final = 50


def _work(trial: Trial) -> None:
    target = trial.scratch / "copy"
    target.mkdir()
    if trial.system.name == "xargs":
        # As the reference product tells its users; names are unique in the whole set.
        pipeline = 'cd "$1" && find . -type f | xargs -P 256 -I {} cp {} "$2"'
        command: list[str | Path] = ["sh", "-c", pipeline, "sh", trial.files, target]
    else:
        command = ["cp", "-r", f"{trial.files}/.", target]
    with trial.measure("cp") as measured:
        _, measured.cut = trial.run(command, cut_s=_CUT_S)
    copied = [path for path in target.rglob("*") if path.is_file()]
    if measured.cut:
        copied = [path for path in copied if path.stat().st_size == trial.sizes.file_bytes]
    elif len(copied) != trial.sizes.files:
        raise WrongBytes(f"{len(copied)} files copied, of {trial.sizes.files}")
    originals = {path.name: path for path in trial.originals.rglob("*") if path.is_file()}
    for path in copied[:: max(1, len(copied) // _COMPARED)]:
        if first_difference({0: path.read_bytes()}, originals[path.name]) is not None:
            raise WrongBytes(f"{path.name} differs from its original")
    measured.value = len(copied) / measured.seconds


SCENARIO = Scenario(
    name="cp",
    rows=(
        Row(
            key="cp",
            title="cp -r, 15,375 files of 150 KiB",
            unit="files/s",
            target="1,000 files/s or more; ahead of rclone, JuiceFS, xargs -P 256 cp",
            conditions=(at_least("cp", 1000), ahead_of("cp", "rclone", "juicefs", "xargs")),
        ),
    ),
    systems=("volfs", "rclone", "juicefs", "xargs"),
    work=_work,
    data="small",
)
