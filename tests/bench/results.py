"""Measurements and what is said of many: medians, failures, the memory of all. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Entry", "Measurement", "Medians", "Summary", "as_json", "medians", "summarize"]

#: (row, system) -> median.
Medians = Mapping[tuple[str, str], float]


@dataclass(slots=True)
class Measurement:
    """One row of one system in one round. `failed` says why there is no value."""

    value: float | None = None
    seconds: float = 0.0
    requests: int | None = None  #: that reached the store; None where nothing counts them
    calls: dict[str, int] = field(default_factory=dict)  #: of the kernel to ours, `all` and by kind if told
    read_bytes: int = 0  #: from the store, if requests are counted
    written_bytes: int = 0  #: to it, likewise
    cpu_s: float | None = None  #: of the daemon; None where there is none
    peak_bytes: int | None = None  #: of the daemon, up to the end of the trial
    cut: bool = False  #: ended before all was done: a rate of a part, or the least that it takes
    details: dict[str, float | str] = field(default_factory=dict)
    failed: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """A measurement and what it is of."""

    row: str
    system: str
    round: int
    measurement: Measurement


@dataclass(frozen=True, slots=True)
class Summary:
    """All rounds of one row of one system."""

    row: str
    system: str
    rounds: int
    median: float | None
    spread: tuple[float, float] | None
    requests: float | None
    calls: float | None
    cpu_s: float | None
    peak_bytes: int | None
    cut: bool
    details: dict[str, float | str]
    failed: tuple[str, ...]


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _details(measured: list[Measurement]) -> dict[str, float | str]:
    """Medians of what are numbers; of words the last."""
    found: dict[str, float | str] = {}
    for name in {name: None for one in measured for name in one.details}:
        values = [one.details[name] for one in measured if name in one.details]
        numbers = [value for value in values if not isinstance(value, str)]
        found[name] = statistics.median(numbers) if numbers else values[-1]
    return found


def summarize(entries: Iterable[Entry]) -> dict[tuple[str, str], Summary]:
    """By row and system, in the order of first appearance."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for entry in entries:
        groups.setdefault((entry.row, entry.system), []).append(entry.measurement)
    found = {}
    for (row, system), measured in groups.items():
        good = [one for one in measured if one.failed is None and one.value is not None]
        values = [one.value for one in good if one.value is not None]
        peaks = [one.peak_bytes for one in measured if one.peak_bytes is not None]
        found[row, system] = Summary(
            row=row,
            system=system,
            rounds=len(measured),
            median=_median(values),
            spread=(min(values), max(values)) if values else None,
            requests=_median(one.requests for one in good),
            calls=_median(one.calls.get("all") for one in good),
            cpu_s=_median(one.cpu_s for one in good),
            peak_bytes=max(peaks, default=None),
            cut=any(one.cut for one in good),
            details=_details(good),
            failed=tuple(one.failed for one in measured if one.failed is not None),
        )
    return found


def medians(summaries: Mapping[tuple[str, str], Summary]) -> dict[tuple[str, str], float]:
    """The medians that there are; details of a row are beside it as `row.detail`."""
    found: dict[tuple[str, str], float] = {}
    for (row, system), summary in summaries.items():
        if summary.median is not None and not summary.failed:
            found[row, system] = summary.median
        for name, value in summary.details.items():
            if not isinstance(value, str):
                found[f"{row}.{name}", system] = value
    return found


def as_json(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """Every measurement as a flat record."""
    return [
        {
            "row": entry.row,
            "system": entry.system,
            "round": entry.round,
            **{name: getattr(entry.measurement, name) for name in Measurement.__dataclass_fields__},
        }
        for entry in entries
    ]
