"""The table of a run: what each system reached, what it cost, and the verdicts on ours. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.bench.results import Summary, medians
from tests.bench.targets import OURS, Row, Verdict, judge

__all__ = ["MEMORY", "memory_verdict", "table", "verdicts"]

MEMORY = "memory"
_MEMORY_MIB = 600
_HEAD = ("system", "median", "of volfs", "min .. max", "store", "calls", "CPU s", "peak MiB", "remarks")

Summaries = Mapping[tuple[str, str], Summary]


def memory_verdict(summaries: Summaries) -> Verdict:
    """600 MiB or less for our daemon, in every trial."""
    peaks = [
        one.peak_bytes for one in summaries.values() if one.system == OURS and one.peak_bytes is not None
    ]
    if not peaks:
        return Verdict(None, "not measured")
    most = max(peaks) / (1 << 20)
    return Verdict(most <= _MEMORY_MIB, f"{most:.0f} MiB <= {_MEMORY_MIB} MiB")


def verdicts(rows: Sequence[Row], summaries: Summaries) -> dict[str, Verdict]:
    """One a row, and one for the memory of all."""
    known = medians(summaries)
    found = {}
    for row in rows:
        ours = summaries.get((row.key, OURS))
        found[row.key] = judge(row, known, ours.failed) if ours else Verdict(None, "volfs not measured")
    found[MEMORY] = memory_verdict(summaries)
    return found


def _word(verdict: Verdict, scaled: bool) -> str:
    word = {True: "PASS", False: "FAIL", None: "----"}[verdict.passed]
    return f"scaled: {word.lower()}" if scaled and verdict.passed is not None else word


def _number(value: float | None, form: str = ",.4g") -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else format(value, form)


def _remarks(summary: Summary) -> str:
    said = [
        f"{name}: {value if isinstance(value, str) else _number(value)}"
        for name, value in summary.details.items()
    ]
    if summary.cut:
        said.insert(0, "cut off")
    if summary.failed:
        said.append(f"{len(summary.failed)} of {summary.rounds} failed: {summary.failed[0]}")
    return "; ".join(said)


def _cells(summary: Summary, ours: Summary | None) -> tuple[str, ...]:
    base = ours.median if ours else None
    ratio = summary.median / base if summary.median is not None and base else None
    low, high = summary.spread or (None, None)
    return (
        summary.system,
        _number(summary.median),
        _number(ratio, ".3f"),
        f"{_number(low)} .. {_number(high)}" if summary.spread else "-",
        _number(summary.requests, ",.0f"),
        _number(summary.calls, ",.0f"),
        _number(summary.cpu_s, ".2f"),
        _number(summary.peak_bytes / (1 << 20) if summary.peak_bytes is not None else None, ",.0f"),
        _remarks(summary),
    )


def table(rows: Sequence[Row], summaries: Summaries, *, scaled: bool) -> str:
    """A block a row: the systems, then the target and the verdict. At the end all verdicts again.

    Under `store` stand the requests that reached the slow store, under `calls` the kernel's to our daemon.
    """
    said = verdicts(rows, summaries)
    lines = []
    for row in rows:
        here = [summary for summary in summaries.values() if summary.row == row.key]
        if not here:
            continue
        cells = [_HEAD, *(_cells(one, summaries.get((row.key, OURS))) for one in here)]
        widths = [max(len(line[i]) for line in cells) for i in range(len(_HEAD) - 1)]
        lines += ["", f"{row.title} [{row.unit}]"]
        for line in cells:
            padded = [
                f"{cell:<{width}}" if i == 0 else f"{cell:>{width}}"
                for i, (cell, width) in enumerate(zip(line, widths, strict=False))
            ]
            lines.append(("  " + "  ".join([*padded, line[-1]])).rstrip())
        lines.append(f"  target: {row.target}")
        lines.append(f"  {_word(said[row.key], scaled)}: {said[row.key].reason}")
    lines += ["", "verdicts"]
    titles = {row.key: row.title for row in rows} | {MEMORY: "memory of the daemon, in all of the above"}
    for key, verdict in said.items():
        if key == MEMORY or any(one.row == key for one in summaries.values()):
            lines.append(f"  {_word(verdict, scaled):<12} {titles[key]:<46} {verdict.reason}")
    return "\n".join(lines).lstrip("\n")
