"""DLIO, the harness beneath MLPerf Storage: `python -m tests.bench.dlio OVERRIDE...` runs it in a process.

It owns which of DLIO's workloads are run, with which options, and what is read of the result. They are like
MLPerf's in kind, not in size: files and batches are small, and one process trains.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from tests.bench.settings import MIB, REPOSITORY, Sizes

__all__ = ["ENVIRONMENT", "EPOCHS", "WORKLOADS", "Epoch", "Workload", "main", "missing"]

EPOCHS: Final = 2

#: For the process that runs the program; a failure is not only logged then.
ENVIRONMENT: Final = {"PYTHONPATH": str(REPOSITORY), "HYDRA_FULL_ERROR": "1"}


@dataclass(frozen=True, slots=True)
class Epoch:
    """What DLIO says of one: samples a second, and for which share of the time it computed."""

    samples_per_s: float
    utilization_percent: float


@dataclass(frozen=True, slots=True)
class Workload:
    """One of DLIO's, a sample a file. The program is to be run with ENVIRONMENT."""

    name: str
    options: tuple[str, ...]
    files: Callable[[Sizes], int]
    record_bytes: int  #: of the array; an npz holds it as it is, a JPEG takes less
    batch: int
    #: Of a batch; it sleeps so long. Without that, decoding takes all of two cores, and a daemon beside it is
    #: measured by what is left of them; with much of it no read shows. The values ask for some two thirds of
    #: the samples that two cores decode from memory.
    computation_s: float

    def generate(self, data: Path, output: Path, sizes: Sizes) -> list[str]:
        """The command that makes the data set in `data`; `output` is for its log."""
        return self._command(
            *(data, output, sizes),
            "++workload.workflow.generate_data=True",
            "++workload.workflow.train=False",
        )

    def train(self, data: Path, output: Path, sizes: Sizes) -> list[str]:
        """The command that trains on it for EPOCHS; `output` is where `epochs` finds the result."""
        return self._command(
            *(data, output, sizes),
            "++workload.workflow.checkpoint=False",
            f"++workload.train.epochs={EPOCHS}",
            f"++workload.train.computation_time={self.computation_s}",
            f"++workload.reader.batch_size={self.batch}",
            "++workload.reader.read_threads=2",
            "++workload.reader.sample_shuffle=seed",
        )

    def epochs(self, output: Path) -> list[Epoch]:
        """By DLIO's own count, which begins when the loader is asked and ends with the last batch."""
        metric = json.loads((output / "summary.json").read_text())["metric"]
        rates, shares = metric["train_throughput_samples_per_second"], metric["train_au_percentage"]
        return [Epoch(*both) for both in zip(rates, shares, strict=True)]

    def _command(self, data: Path, output: Path, sizes: Sizes, *options: str) -> list[str]:
        return [
            *(sys.executable, "-P", "-m", "tests.bench.dlio", *self.options),
            f"hydra.run.dir={output}",
            "hydra.job.chdir=True",  # it makes a directory for checkpoints where it runs, even to save none
            f"++workload.dataset.data_folder={data}",
            f"++workload.dataset.num_files_train={self.files(sizes)}",
            "++workload.dataset.num_samples_per_file=1",
            f"++workload.dataset.record_length={self.record_bytes}",
            "++workload.dataset.record_length_stdev=0",
            *options,
        ]


WORKLOADS: Final = (
    Workload(
        name="unet3d",
        options=("workload=unet3d_h100",),
        files=lambda sizes: sizes.unet3d_files,
        record_bytes=8 * MIB,
        batch=4,
        computation_s=0.03,
    ),
    Workload(
        name="resnet50",
        options=(
            "workload=resnet50_h100",  # for TensorFlow, but for what follows
            "++workload.framework=pytorch",
            "++workload.reader.data_loader=pytorch",
            "++workload.dataset.format=jpeg",
        ),
        files=lambda sizes: sizes.resnet50_files,
        record_bytes=448 * 448,  # noise in gray: a JPEG of some 112 KiB
        batch=16,
        computation_s=0.03,
    ),
)


def missing() -> str | None:
    """How to install it, if it is not there."""
    return None if importlib.util.find_spec("dlio_benchmark") else "make bench-dlio"


def main(overrides: Sequence[str]) -> None:
    """Run DLIO in this process. What it logs is in its output directory, and not repeated here."""
    # It imports a profiler for TensorFlow whatever it runs, and does not use it with PyTorch.
    sys.modules.setdefault("tensorflow", ModuleType("tensorflow"))
    sys.argv[1:] = overrides
    with open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
        from dlio_benchmark.main import main as run

        run()


if __name__ == "__main__":
    main(sys.argv[1:])
