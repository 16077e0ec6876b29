"""`torch.save` of one tensor of 1 GiB, to its close, beside `dd` of as many bytes to the slow store."""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path

from tests.bench.data import CHECKPOINT
from tests.bench.scenario import Scenario
from tests.bench.settings import REPOSITORY
from tests.bench.targets import Row, within
from tests.bench.trial import Trial, WrongBytes

__all__ = ["SCENARIO"]

_NAME = "saved.pt"


def _source(trial: Trial) -> Path:
    """The bytes, on the local disk and in memory."""
    path = trial.data.get("checkpoint") / "set" / CHECKPOINT
    path.read_bytes()
    return path


def _dd(trial: Trial) -> None:
    source = _source(trial)
    with trial.measure("checkpoint"):
        trial.run(["dd", f"if={source}", f"of={trial.mounted.root / _NAME}", "bs=1M", "status=none"])
    if (trial.source / _NAME).stat().st_size != trial.sizes.checkpoint_bytes:
        raise WrongBytes("dd wrote another size")


def _save(trial: Trial) -> None:
    command: list[str | Path] = [
        sys.executable,
        "-P",
        "-m",
        "tests.bench.saving",
        _source(trial),
        trial.mounted.root / _NAME,
    ]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    with trial.start(command, environment=environment) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise OSError("torch.save could not begin")
        with trial.measure("checkpoint") as measured:
            process.stdin.write("go\n")
            process.stdin.flush()
            said = process.stdout.readline()
            if not said:
                raise OSError("torch.save failed")
            measured.seconds = float(said)
        process.wait()
    if trial.system.name == "juicefs":  # its store holds objects of its own
        return
    # Close publishes: the file is in the store now, whole. The checksums in it are torch's own.
    with zipfile.ZipFile(trial.source / _NAME) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise WrongBytes(f"{damaged} is damaged in the store")


def _work(trial: Trial) -> None:
    _dd(trial) if trial.system.name == "dd" else _save(trial)


SCENARIO = Scenario(
    name="checkpoint",
    rows=(
        Row(
            key="checkpoint",
            title="torch.save of 1 GiB, to close",
            unit="s",
            target="1.15 x of dd to the store, or less",
            conditions=(within("checkpoint", 1.15, "checkpoint", "dd", higher=False),),
            higher_is_better=False,
        ),
    ),
    # Not rclone: its close does not wait for the upload.
    systems=("volfs", "juicefs", "dd"),
    work=_work,
)
