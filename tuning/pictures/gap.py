"""Draws the best configuration against the second best, the gap between them shaded (the Field Guide's figure 1).

It shows the effect of the choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from raysim.report.curve import spread
from raysim.report.figures import is_share, loss, share
from raysim.report.looks import GREY, INK, SERIES, plain
from raysim.report.series import Series
from tuning.conclude import folder_of
from tuning.objective import Objective
from tuning.pictures.curves import mean_curve
from tuning.pictures.values import over_rounds, write_values
from tuning.result import Study
from tuning.search import trial_folder
from tuning.writing import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_GAP = 0.12
"""Least distance of the two labels, as a share of the axis's height."""


def figure(study: Study) -> Figure | None:
    """Return the picture of the final runs on test, or if there are none, of the trials on validation clients."""
    if study.second is None:
        return None
    numbers = (study.best.number, study.second.number)
    tested = next(
        (name for kind in ("accuracy", "loss") for name in study.best.test if name.endswith(f"/{kind}")), None
    )
    sources = [(folder_of, tested)] if tested is not None else []
    for folder, column in (*sources, (trial_folder, study.objective.column)):
        curves = [mean_curve(folder(study.path, number), column) for number in numbers]
        known = [curve for curve in curves if curve is not None and len(curve.rounds) > 1]
        if len(known) == len(curves):
            return _drawn(study, known[0], known[1], column)
    return None


def _drawn(study: Study, best: Series, second: Series, column: str) -> Figure:
    from matplotlib.figure import Figure

    assert study.second is not None
    in_percent = is_share(column)
    write = share if in_percent else loss
    picture = Figure(figsize=(7.2, 4.2), dpi=150, layout="constrained")
    axes = picture.add_subplot()
    plain(axes)
    common = np.intersect1d(best.rounds, second.rounds)
    first, other = (curve.mean[np.isin(curve.rounds, common)] for curve in (best, second))
    axes.fill_between(common, first, other, color=GREY, alpha=0.6, linewidth=0)
    for curve, colour in zip((best, second), SERIES, strict=False):
        axes.plot(curve.rounds, curve.mean, color=colour, linewidth=2)
    low, high = axes.get_ylim()
    ends = spread([(curve.mean[-1] - low) / (high - low) for curve in (best, second)], _GAP)
    # Labels of two lines must not overlap the title.
    heights = [end - max(0.0, max(ends) - 1 + _GAP / 2) for end in ends]
    named = (("best", best, study.best.values), ("second best", second, study.second.values))
    for (name, curve, values), colour, height in zip(named, SERIES, heights, strict=False):
        label = f"{write(curve.mean[-1])}  {name}\n{_short(values)}"
        axes.text(1.02, height, label, transform=axes.transAxes, va="center", fontsize=9, color=colour, weight="bold")
    write_values(axes.yaxis, Objective() if in_percent else Objective(name="loss"))
    over_rounds(axes)
    gap = float(np.abs(first - other).mean())
    mean = f"{100 * gap:.1f} points" if in_percent else loss(gap)
    what = column.removeprefix("eval/").replace("/", " ")
    axes.set_title(f"{study.name}: {what}; the gap is {mean} on average", loc="left", fontsize=12, color=INK)
    return picture


def _short(values: Mapping[str, Any]) -> str:
    """Return settings in short: "client 0.1, server 0.01" for learning rates."""
    return ", ".join(f"{key.removesuffix('.optimizer.lr')} {number(value)}" for key, value in values.items())
