"""DLIO, MLPerf-like, on a mount of a local directory: two epochs of two workloads, the first one cold.

Beside it the same on the directory itself, so that it shows what the mount costs where no store is slow. The
figures are DLIO's own. What both epochs cost stands beside the first one.
"""

from __future__ import annotations

from tests.bench import dlio
from tests.bench.results import Measurement
from tests.bench.scenario import Scenario
from tests.bench.targets import Row
from tests.bench.trial import Trial, drop_caches

__all__ = ["SCENARIO"]


def _note(measured: Measurement, epoch: dlio.Epoch) -> None:
    measured.value = epoch.samples_per_s
    measured.details["accelerator utilization %"] = epoch.utilization_percent


def _work(trial: Trial) -> None:
    for workload in dlio.WORKLOADS:
        again = f"{workload.name}-again"
        if not trial.wanted & {workload.name, again}:
            continue
        output = trial.scratch / workload.name
        command = workload.train(trial.files / workload.name, output, trial.sizes)
        drop_caches()
        with trial.measure(workload.name) as measured:
            trial.run(command, environment=dlio.ENVIRONMENT)
            cold, warm = workload.epochs(output)
            _note(measured, cold)
        if again in trial.wanted:
            trial.measurements[again] = Measurement()
            _note(trial.measurements[again], warm)


SCENARIO = Scenario(
    name="dlio",
    rows=tuple(
        row
        for workload, size in (("unet3d", "8 MiB"), ("resnet50", "112 KiB"))
        for row in (
            Row(workload, f"DLIO {workload} (MLPerf-like), {size}, epoch 1", "samples/s", "none"),
            Row(f"{workload}-again", "... epoch 2", "samples/s", "none"),
        )
    ),
    systems=("volfs", "local"),
    work=_work,
    data="dlio",
    slow=False,
    missing=dlio.missing,
)
