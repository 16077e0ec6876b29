"""The plot of a run: a panel a row, a bar a system."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bench.results import Summary
from tests.bench.targets import OURS, Row

__all__ = ["plot"]

_COLUMNS = 3
_OURS, _OTHERS = "#c2410c", "#94a3b8"


def plot(rows: Sequence[Row], summaries: Mapping[tuple[str, str], Summary], path: Path, title: str) -> None:
    """Write a PNG of the medians, with the least and the most of the rounds.

    Raises ImportError without matplotlib.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    shown = [
        row
        for row in rows
        if any(one.row == row.key and one.median is not None for one in summaries.values())
    ]
    if not shown:
        return
    lines = -(-len(shown) // _COLUMNS)
    figure, axes = pyplot.subplots(
        lines, _COLUMNS, figsize=(5 * _COLUMNS, 2.6 * lines), squeeze=False, layout="constrained"
    )
    for panel, row in zip(axes.flat, shown, strict=False):
        here = [one for one in summaries.values() if one.row == row.key and one.median is not None]
        names = [one.system for one in here]
        values = [one.median or 0.0 for one in here]
        low = [value - one.spread[0] if one.spread else 0.0 for one, value in zip(here, values, strict=True)]
        high = [one.spread[1] - value if one.spread else 0.0 for one, value in zip(here, values, strict=True)]
        colors = [_OURS if name == OURS else _OTHERS for name in names]
        panel.barh(names, values, xerr=[low, high], color=colors, ecolor="#334155", capsize=2)
        panel.invert_yaxis()
        panel.set_title(row.title, fontsize=9)
        better = "more" if row.higher_is_better else "less"
        panel.set_xlabel(f"{row.unit} ({better} is better)", fontsize=8)
        panel.tick_params(labelsize=8)
    for panel in list(axes.flat)[len(shown) :]:
        panel.set_visible(False)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
