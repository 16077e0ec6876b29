"""The MLflow adapter, with a module in the place of MLflow."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from volfs_client import BatchTiming, MlflowTimings


class PlayedMlflow:
    """Notes what is logged."""

    def __init__(self) -> None:
        self.active: object = SimpleNamespace()
        self.logged: list[tuple[dict[str, float], int, bool]] = []
        self.error: Exception | None = None

    def active_run(self) -> object:
        return self.active

    def log_metrics(self, metrics: dict[str, float], step: int, synchronous: bool) -> None:
        if self.error is not None:
            raise self.error
        self.logged.append((metrics, step, synchronous))


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> PlayedMlflow:
    """MLflow, imported, with an active run; and no launcher."""
    played = PlayedMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", played)  # type: ignore[arg-type]
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return played


def tell(timings: Any, count: int) -> None:
    """Batches that waited for 0.1 s and worked for 0.3 s."""
    for batch in range(count):
        timings(BatchTiming(0, batch, 8, 0.1, 0.3))


def test_means_are_logged(mlflow: PlayedMlflow) -> None:
    """C30: Of each so many batches, without waiting for the server."""
    tell(MlflowTimings(every=4), 9)
    assert [(step, synchronous) for _, step, synchronous in mlflow.logged] == [(4, False), (8, False)]
    metrics = mlflow.logged[0][0]
    assert metrics == {
        "loader/wait_s": pytest.approx(0.1),
        "loader/compute_s": pytest.approx(0.3),
        "loader/samples_per_s": pytest.approx(20.0),
    }
    with pytest.raises(ValueError, match="every"):
        MlflowTimings(every=0)


def test_no_run_is_begun(mlflow: PlayedMlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    """C30: Without an active run, on another rank, and where nobody imported MLflow, nothing is logged."""
    mlflow.active = None
    tell(MlflowTimings(every=1), 2)
    mlflow.active = SimpleNamespace()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    tell(MlflowTimings(every=1), 2)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.delitem(sys.modules, "mlflow")
    tell(MlflowTimings(every=1), 2)
    assert mlflow.logged == [] and "mlflow" not in sys.modules


def test_a_server_that_is_away_is_told_of_once(mlflow: PlayedMlflow) -> None:
    """C30: Training goes on, and so does logging when it is back."""
    timings = MlflowTimings(every=1, prefix="train/")
    mlflow.error = ConnectionError("away")
    with pytest.warns(UserWarning, match="away") as caught:
        tell(timings, 3)
    assert len(caught) == 1
    mlflow.error = None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell(timings, 1)
    assert [step for _, step, _ in mlflow.logged] == [4] and "train/wait_s" in mlflow.logged[0][0]
