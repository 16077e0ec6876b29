"""The suite runs: a mount over the slow store, measured, judged, and nothing left of it, also if it hangs."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench import dlio
from tests.bench.results import Entry, summarize
from tests.bench.runner import Runner, chosen
from tests.bench.scenario import Scenario
from tests.bench.scenarios import SCENARIOS
from tests.bench.settings import LATENCY_S, Settings
from tests.bench.table import table
from tests.bench.targets import Row
from tests.bench.trial import Trial
from tests.mount import mounts

pytestmark = pytest.mark.usefixtures("guarded")


def _run_all(base: Path, scenario: Scenario, said: Callable[[str], None] = lambda _: None) -> list[Entry]:
    settings = Settings(rounds=1, scale=0.01, peers=("volfs",), directory=base)
    rows = frozenset(row.key for row in scenario.rows)
    entries = list(Runner(settings, base, said).run([(scenario, rows)]))
    assert mounts.beneath(base) == []
    assert list(base.glob("trial*")) == []
    return entries


def _run(base: Path, scenario: Scenario) -> Entry:
    (entry,) = _run_all(base, scenario)
    return entry


@pytest.fixture
def base(volumes_base: Path, request: pytest.FixtureRequest) -> Path:
    """A directory that other users may pass through, looked at for leftovers when the session ends."""
    path = volumes_base / str(request.node.name)
    path.mkdir()
    return path


def test_a_small_run(base: Path) -> None:
    """The first byte of a cold file: measured on volfs, at least one round trip, and taken away again."""
    ((scenario, _),) = chosen(SCENARIOS, ["first-byte"])
    entry = _run(base, scenario)

    assert entry.measurement.failed is None
    assert entry.measurement.seconds >= LATENCY_S
    assert entry.measurement.requests > 0
    assert entry.measurement.peak_bytes
    assert "first byte of a cold file" in table(scenario.rows, summarize([entry]), scaled=True)


def test_a_trial_that_hangs_is_ended(base: Path) -> None:
    """A store that does not answer any more: the deadline frees the work, and the row says why it failed."""

    def work(trial: Trial) -> None:
        trial.store.daemon.send(signal.SIGSTOP)
        (trial.mounted.root / "anything").stat()

    scenario = Scenario("hang", (Row("hang", "hang", "s", "none"),), ("volfs",), work, deadline_s=1)

    assert _run(base, scenario).measurement.failed == "DidNotEnd: no end within 1 s"


def test_a_store_that_is_not_slow(base: Path) -> None:
    """The directory itself is mounted, and no requests are claimed to have been counted."""
    seen = []

    def work(trial: Trial) -> None:
        with trial.measure("plain"):
            (trial.mounted.root / "new").write_bytes(b"through the mount")
        seen.append((trial.source / "new").read_bytes())
        assert trial.mounted.root != trial.source
        assert trial.store is None

    scenario = Scenario("plain", (Row("plain", "plain", "s", "none"),), ("volfs",), work, slow=False)
    entry = _run(base, scenario)

    assert entry.measurement.failed is None
    assert seen == [b"through the mount"]
    assert entry.measurement.requests is None
    assert entry.measurement.calls["write"] >= 1


def test_a_trial_without_a_slow_store_is_ended_too(base: Path) -> None:
    """The deadline frees work that hangs in a daemon that does not answer."""

    def work(trial: Trial) -> None:
        assert trial.mounted.daemon is not None
        trial.mounted.daemon.send(signal.SIGSTOP)
        (trial.mounted.root / "anything").stat()

    row = Row("hang", "hang", "s", "none")
    scenario = Scenario("hang", (row,), ("volfs",), work, slow=False, deadline_s=1)

    assert _run(base, scenario).measurement.failed == "DidNotEnd: no end within 1 s"


def test_a_scenario_without_its_programs_is_left_out(base: Path) -> None:
    """It is said how to install them, and that is no failure."""
    said: list[str] = []

    def work(trial: Trial) -> None:
        raise AssertionError(f"work in {trial.scratch}")

    row = Row("absent", "absent", "s", "none")
    scenario = Scenario("absent", (row,), ("volfs",), work, missing=lambda: "make it")

    assert _run_all(base, scenario, said.append) == []
    assert said == ["absent is not installed, and left out (make it)"]


@pytest.mark.long
@pytest.mark.skipif(dlio.missing() is not None, reason="DLIO comes with make bench-dlio")
def test_dlio_runs(base: Path) -> None:
    """Both workloads train for two epochs through a mount, and DLIO's own figures are the rows'."""
    ((scenario, _),) = chosen(SCENARIOS, ["dlio"])
    entries = _run_all(base, scenario)

    assert [entry.measurement.failed for entry in entries] == [None] * len(scenario.rows)
    assert {entry.row for entry in entries} == {row.key for row in scenario.rows}
    assert all((entry.measurement.value or 0) > 0 for entry in entries)


def test_a_peer_that_was_cut_off_is_measured_once(base: Path) -> None:
    """What is far behind takes part in one round; who is not, and ours whatever it does, in all."""

    def work(trial: Trial) -> None:
        with trial.measure("slow") as measured:
            measured.cut = trial.system.name in ("direct", "volfs")

    row = Row("slow", "slow", "s", "none")
    scenario = Scenario("slow", (row,), ("volfs", "direct", "local"), work, slow=False)
    settings = Settings(rounds=3, scale=0.01, directory=base)
    run = Runner(settings, base, lambda _: None).run([(scenario, frozenset({"slow"}))])
    assert Counter(entry.system for entry in run) == {"volfs": 3, "direct": 1, "local": 3}


def test_a_trial_leaves_names_and_no_bytes(base: Path) -> None:
    """Until the end of the run the files of earlier trials are there, empty; then nothing is."""
    found: list[int] = []

    def work(trial: Trial) -> None:
        found.extend(path.stat().st_size for path in base.glob("trial*/written/f"))
        (trial.source / "f").write_bytes(b"x" * 1000)

    scenario = Scenario("leaves", (Row("leaves", "leaves", "s", "none"),), ("local",), work, slow=False)
    settings = Settings(rounds=2, scale=0.01, directory=base)
    list(Runner(settings, base, lambda _: None).run([(scenario, frozenset({"leaves"}))]))
    assert found == [0]
    assert list(base.glob("trial*")) == []
