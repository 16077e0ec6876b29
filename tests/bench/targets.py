"""Targets and their verdicts: conditions over medians. Pure.

A condition answers True, False, or None where what it needs was not measured; a row fails if one is false,
passes if all that could be judged are true, and has no verdict if none could.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.bench.results import Medians

__all__ = [
    "NOISE",
    "OURS",
    "Condition",
    "Row",
    "Verdict",
    "ahead_of",
    "at_least",
    "at_most",
    "judge",
    "within",
]

OURS: Final = "volfs"

#: Two runs of the very same work differ by so much on the shared cores that this is made for. Allowed only
#: where the target is to equal something, not where it is to be ahead.
NOISE: Final = 1.05

#: True, False or None, and what was compared.
Condition = Callable[[Medians], tuple[bool | None, str]]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of the table."""

    key: str
    title: str
    unit: str
    target: str
    conditions: tuple[Condition, ...] = ()
    higher_is_better: bool = True


@dataclass(frozen=True, slots=True)
class Verdict:
    """`passed` is None where nothing could be judged."""

    passed: bool | None
    reason: str


def at_least(row: str, least: float) -> Condition:
    """Ours reaches a figure."""

    def condition(medians: Medians) -> tuple[bool | None, str]:
        value = medians.get((row, OURS))
        return (
            (None, f"{row} not measured") if value is None else (value >= least, f"{value:.4g} >= {least:g}")
        )

    return condition


def at_most(row: str, most: float, *, counted_with: str = "") -> Condition:
    """Ours stays below a figure, or at it. A count that is missing beside the row it belongs to fails."""

    def condition(medians: Medians) -> tuple[bool | None, str]:
        value = medians.get((row, OURS))
        if value is None and (counted_with, OURS) in medians:
            return False, f"{row} not counted"
        return (None, f"{row} not measured") if value is None else (value <= most, f"{value:.4g} <= {most:g}")

    return condition


def ahead_of(row: str, *systems: str, higher: bool = True) -> Condition:
    """Ours is better than each of these that was measured."""

    def condition(medians: Medians) -> tuple[bool | None, str]:
        ours = medians.get((row, OURS))
        theirs = {system: medians[row, system] for system in systems if (row, system) in medians}
        if ours is None or not theirs:
            return None, f"not measured: {', '.join(systems)}"
        lost = [name for name, value in theirs.items() if not (ours > value if higher else ours < value)]
        absent = [system for system in systems if system not in theirs]
        note = f" (not measured: {', '.join(absent)})" if absent else ""
        if lost:
            return False, "behind " + ", ".join(f"{name} ({theirs[name]:.4g})" for name in lost) + note
        return True, "ahead of " + ", ".join(theirs) + note

    return condition


def within(row: str, share: float, of: str, system: str = OURS, *, higher: bool = True) -> Condition:
    """Ours is `share` or more (`higher` False: or less) of another median, of `system` in row `of`."""

    def condition(medians: Medians) -> tuple[bool | None, str]:
        ours, base = medians.get((row, OURS)), medians.get((of, system))
        if ours is None or not base:
            return None, f"{of} of {system} not measured"
        ratio = ours / base
        sign = ">=" if higher else "<="
        return (ratio >= share if higher else ratio <= share), f"{ratio:.3f} {sign} {share:g} of {system}"

    return condition


def judge(row: Row, medians: Medians, failures: Sequence[str] = ()) -> Verdict:
    """The verdict on one row; `failures` are the rounds of ours that did not end with a figure."""
    if failures:
        return Verdict(False, failures[0])
    if not row.conditions:
        return Verdict(None, "no target")
    said = [condition(medians) for condition in row.conditions]
    reason = "; ".join(text for _, text in said)
    known = [passed for passed, _ in said if passed is not None]
    return Verdict(all(known) if known else None, reason)
