"""Draws the best method of each folder, with a shade down to the second best.

Source: Wang et al. (2021), figures 1, 3 and 11.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.report.best import Chosen, Scored, until
from raysim.report.column_names import is_share, spoken
from raysim.report.gallery import axes as ticks
from raysim.report.gallery.figure import Figure
from raysim.report.groups import written
from raysim.report.looks import nth
from raysim.report.series import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class _Gap(NamedTuple):
    chosen: Chosen
    best: Series
    second: Series | None


def figure(choices: Sequence[Chosen], shown: str) -> Figure | None:
    """Return the picture of the column `shown` for choices by one score; None if no best method has it."""
    lines = []
    for chosen in choices:
        best = until(chosen.best.group, shown, chosen.after)
        second = until(chosen.second.group, shown, chosen.after) if chosen.second is not None else None
        if best is not None:
            lines.append(_Gap(chosen, best, second))
    if not lines:
        return None
    by, after = choices[0].by, max(chosen.after for chosen in choices)
    return Figure(
        f"best-by-{by}-after-{after}",
        f"{spoken(shown)}, chosen by {spoken(by)} after {after:,} rounds",
        "A line for the best method of each folder; the shade ends at the second best.",
        _table(lines),
        lambda axes: _draw(axes, lines, shown),
    )


def settings(scored: Scored) -> str:
    """Return what distinguishes a method from the others of its folder: "client.optimizer.lr = 0.1, ..."."""
    return ", ".join(f"{key} = {written(value)}" for key, value in scored.group.keys.items())


def _table(lines: Sequence[_Gap]) -> pa.Table:
    rows = [
        {
            "group": line.chosen.folder,
            "place": place,
            "settings": settings(scored),
            "score": scored.score,
            "round": int(after),
            "mean": float(value),
        }
        for line in lines
        for place, scored, curve in (
            ("best", line.chosen.best, line.best),
            ("second best", line.chosen.second, line.second),
        )
        if scored is not None and curve is not None
        for after, value in zip(curve.rounds, curve.mean, strict=True)
    ]
    return pa.Table.from_pylist(rows)


def _draw(axes: Axes, lines: Sequence[_Gap], shown: str) -> None:
    for place, line in enumerate(lines):
        look, label = nth(place), settings(line.chosen.best)
        legend = f"{line.chosen.folder}: {label}" if label else line.chosen.folder
        axes.plot(line.best.rounds, line.best.mean, **look.line(len(line.best.rounds), legend))
        if line.second is not None:
            common, at_best, at_second = np.intersect1d(line.best.rounds, line.second.rounds, return_indices=True)
            best, second = line.best.mean[at_best], line.second.mean[at_second]
            axes.fill_between(common, best, second, color=look.colour, alpha=0.25, linewidth=0)
    axes.set_xlabel("finished rounds")
    axes.set_ylabel(spoken(shown))
    if is_share(shown):
        ticks.shares(axes)
