"""The pure parts of the benchmark suite: what is made of measurements, and what is said of the result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench import dlio
from tests.bench.results import Entry, Measurement, as_json, medians, summarize
from tests.bench.runner import chosen
from tests.bench.scenarios import SCENARIOS
from tests.bench.settings import Settings, Sizes
from tests.bench.table import MEMORY, table, verdicts
from tests.bench.targets import Condition, Row, ahead_of, at_least, at_most, judge, within

_MIB = 1 << 20


def _entries(row: str, system: str, *values: float | None, peak: int = 0) -> list[Entry]:
    return [
        Entry(row, system, i, Measurement(value=value, peak_bytes=peak, failed=None if value else "why"))
        for i, value in enumerate(values)
    ]


def test_a_median_is_of_the_rounds_that_ended_well() -> None:
    """A failed round is counted and told, and its system has no median to compare with."""
    summaries = summarize([*_entries("cp", "volfs", 3, 1, 2), *_entries("cp", "rclone", 5, None, 7)])

    assert summaries["cp", "volfs"].median == 2
    assert summaries["cp", "volfs"].spread == (1, 3)
    assert summaries["cp", "rclone"].median == 6
    assert summaries["cp", "rclone"].failed == ("why",)
    assert medians(summaries) == {("cp", "volfs"): 2}


def test_details_have_medians_too() -> None:
    """What was counted beside a row can be a target's subject; words cannot."""
    entries = [
        Entry("pages", "volfs", i, Measurement(value=1, details={"READ requests": count, "kind": "exact"}))
        for i, count in enumerate((0, 4, 2))
    ]
    summaries = summarize(entries)

    assert summaries["pages", "volfs"].details == {"READ requests": 2, "kind": "exact"}
    assert medians(summaries)["pages.READ requests", "volfs"] == 2
    assert ("pages.kind", "volfs") not in medians(summaries)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (at_least("a", 10), True),
        (at_least("a", 11), False),
        (at_least("none", 1), None),
        (at_most("a", 10), True),
        (at_most("a", 9), False),
        (at_most("none", 9), None),
        (at_most("a.count", 0, counted_with="a"), False),
        (at_most("none.count", 0, counted_with="none"), None),
        (ahead_of("a", "slow"), True),
        (ahead_of("a", "slow", "absent"), True),
        (ahead_of("a", "equal"), False),
        (ahead_of("a", "slow", "fast"), False),
        (ahead_of("a", "fast", higher=False), True),
        (ahead_of("a", "absent"), None),
        (within("a", 0.5, "a", "fast"), True),
        (within("a", 0.51, "a", "fast"), False),
        (within("a", 0.5, "a", "fast", higher=False), True),
        (within("a", 0.49, "a", "fast", higher=False), False),
        (within("b", 0.8, "a"), True),
        (within("a", 1, "a", "absent"), None),
    ],
)
def test_conditions(condition: Condition, expected: bool | None) -> None:
    """Each kind of condition at its edge, and without what it needs."""
    known = {("a", "volfs"): 10, ("a", "slow"): 5, ("a", "equal"): 10, ("a", "fast"): 20, ("b", "volfs"): 8}

    assert condition(known)[0] is expected


def test_a_row_passes_if_nothing_that_was_measured_speaks_against_it() -> None:
    """One false condition fails a row, none that could be judged leaves it open, a failed round fails it."""
    row = Row("a", "title", "s", "target", (at_least("a", 1), ahead_of("a", "absent")))
    known = {("a", "volfs"): 1.0}

    assert judge(row, known).passed is True
    assert judge(row, {}).passed is None
    assert judge(row, {("a", "volfs"): 0.5}).passed is False
    assert judge(row, known, failures=["no end"]).passed is False
    assert judge(row, known, failures=["no end"]).reason == "no end"


def test_memory_is_the_worst_of_all_trials_of_ours() -> None:
    """A peer's memory is shown, not judged."""
    rows = [row for one in SCENARIOS for row in one.rows]
    small = [*_entries("cp", "volfs", 1, peak=600 * _MIB), *_entries("cp", "juicefs", 1, peak=900 * _MIB)]
    large = _entries("ls-warm", "volfs", 1, peak=601 * _MIB)

    assert verdicts(rows, summarize(small))[MEMORY].passed is True
    assert verdicts(rows, summarize([*small, *large]))[MEMORY].passed is False


def test_the_table_shows_medians_ratios_and_verdicts() -> None:
    """A block a measured row; scaled verdicts say so."""
    rows = [row for one in SCENARIOS for row in one.rows]
    summaries = summarize([*_entries("cp", "volfs", 1200), *_entries("cp", "xargs", 600)])
    text = table(rows, summaries, scaled=False)

    assert "cp -r, 15,375 files of 150 KiB [files/s]" in text
    assert "0.500" in text
    assert "PASS: 1200 >= 1000; ahead of xargs" in text
    assert "first byte" not in text
    assert "scaled: pass" in table(rows, summaries, scaled=True)


def test_scenarios_are_chosen_by_name_or_row() -> None:
    """A scenario brings all of its rows, a row only itself, and both what their targets refer to."""
    everything = {row.key for one in SCENARIOS for row in one.rows}

    def rows(*only: str) -> set[str]:
        return set().union(*(keys for _, keys in chosen(SCENARIOS, only)))

    assert rows() == everything
    assert rows("epochs") == {"sequential", "pages", "disk"}
    assert rows("pages") == {"pages"}
    assert rows("streams") == {"streams", "sequential"}
    with pytest.raises(ValueError, match="no scenario nonsense; there are: first-byte"):
        rows("nonsense")


def test_settings_come_from_the_environment() -> None:
    """What is not set has its default; what is not possible is refused."""
    settings = Settings.from_environment({"BENCH_ONLY": "cp, ls", "BENCH_SCALE": "0.1", "BENCH_ROUNDS": "2"})

    assert (settings.only, settings.scale, settings.rounds, settings.peers) == (("cp", "ls"), 0.1, 2, ())
    assert Settings.from_environment({}) == Settings()
    for wrong in ({"BENCH_SCALE": "0"}, {"BENCH_SCALE": "1.5"}, {"BENCH_ROUNDS": "0"}, {"BENCH_ROUNDS": "x"}):
        with pytest.raises(ValueError):
            Settings.from_environment(wrong)


def test_full_size_is_what_the_targets_are_for() -> None:
    """A scale of 1 changes nothing; a small one keeps the files' own sizes and whole MiB."""
    assert Sizes.scaled(1) == Sizes()
    assert Sizes().files == 15_375
    small = Sizes.scaled(0.01)
    assert small.file_bytes == Sizes().file_bytes
    assert small.large_bytes % _MIB == 0
    assert small.files < 100


def test_dlio_has_a_figure_an_epoch(tmp_path: Path) -> None:
    """They are read from its summary, in order; also the smallest data set has more than one batch."""
    metric = {"train_throughput_samples_per_second": [50.0, 100.0], "train_au_percentage": [40.0, 90.0]}
    (tmp_path / "summary.json").write_text(json.dumps({"metric": metric}))

    for workload in dlio.WORKLOADS:
        assert workload.epochs(tmp_path) == [dlio.Epoch(50, 40), dlio.Epoch(100, 90)]
        assert workload.files(Sizes.scaled(0.001)) >= 2 * workload.batch


def test_measurements_are_written_whole() -> None:
    """A record has every field of its measurement."""
    (record,) = as_json(_entries("cp", "volfs", 3))

    assert record["row"] == "cp"
    assert set(Measurement.__dataclass_fields__) < set(record)
