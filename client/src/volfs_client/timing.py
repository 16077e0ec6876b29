"""How long each batch was waited for, and how long it was worked on.

The loader measures (`loader`) and calls whom it was given; here is what it says, and an adapter that logs it
to MLflow.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Final, NamedTuple

from volfs_client import ranks

__all__ = ["BatchTiming", "MlflowTimings"]

#: Logging is a request to a server: often enough for a curve, seldom enough to cost nothing.
_EVERY: Final = 50


class BatchTiming(NamedTuple):
    """One batch.

    epoch, batch  counted from 0; batches since this iteration began
    samples       files in it that are no padding
    wait_s        from when it was asked for until it was there
    compute_s     from then until the next one was asked for
    """

    epoch: int
    batch: int
    samples: int
    wait_s: float
    compute_s: float


class MlflowTimings:
    """Logs means of `every` batches to the active MLflow run: seconds waited and computed, samples a second.

    Only on rank 0, and only if the program has a run active; it starts none. It never raises: what
    goes wrong is warned of once. Steps of the metrics count batches since it was made.
    """

    def __init__(self, every: int = _EVERY, prefix: str = "loader/") -> None:
        if every < 1:
            raise ValueError(f"every is a number of batches, not {every}")
        self._every = every
        self._prefix = prefix
        self._batches = 0
        self._gathered: list[BatchTiming] = []
        self._warned = False

    def __call__(self, timing: BatchTiming) -> None:
        self._batches += 1
        self._gathered.append(timing)
        if len(self._gathered) < self._every:
            return
        gathered, self._gathered = self._gathered, []
        try:
            self._log(gathered)
        except Exception as error:  # a server that is away must not end the training
            if not self._warned:
                self._warned = True
                warnings.warn(f"loader timings are not logged: {error!r}", stacklevel=2)

    def _log(self, gathered: list[BatchTiming]) -> None:
        # Whoever has a run active has imported it. Asked for by itself, log_metrics would begin a run.
        mlflow: Any = sys.modules.get("mlflow")
        if mlflow is None or mlflow.active_run() is None or ranks.find_rank().rank != 0:
            return
        wait_s = sum(each.wait_s for each in gathered)
        compute_s = sum(each.compute_s for each in gathered)
        metrics = {
            "wait_s": wait_s / len(gathered),
            "compute_s": compute_s / len(gathered),
            "samples_per_s": sum(each.samples for each in gathered) / max(wait_s + compute_s, 1e-9),
        }
        named = {self._prefix + name: value for name, value in metrics.items()}
        mlflow.log_metrics(named, step=self._batches, synchronous=False)
