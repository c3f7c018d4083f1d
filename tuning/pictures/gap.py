"""Draws the best configuration against the second best, the gap between them shaded (the Field Guide's figure 1).

It shows the effect of the choice."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raysim.arrays import Float64s, Int64s
from raysim.report.column_names import is_share, spoken
from raysim.report.gallery.figure import Figure
from raysim.report.looks import GREY, nth
from raysim.report.number_formats import loss, share
from raysim.report.series import Series
from tuning.conclude import folder_of
from tuning.pictures.curves import mean_curve
from tuning.pictures.values import over_rounds, write_values
from tuning.result import Configuration, Study
from tuning.search import trial_folder
from tuning.writing import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    assert study.second is not None
    common = np.intersect1d(best.rounds, second.rounds)
    first, other = (curve.mean[np.isin(curve.rounds, common)] for curve in (best, second))
    gap = float(np.abs(first - other).mean())
    mean = f"{100 * gap:.1f} points" if is_share(column) else loss(gap)
    curves = {"best": (best, study.best), "second best": (second, study.second)}
    return Figure(
        "gap",
        f"{study.name}: {spoken(column)} of the best and the second best",
        f"The gap between them is shaded; it is {mean} on average.",
        pa.table(
            {
                "group": [name for name, (curve, _) in curves.items() for _ in curve.rounds],
                "settings": [short(one.values) for curve, one in curves.values() for _ in curve.rounds],
                "round": np.concatenate([curve.rounds for curve, _ in curves.values()]),
                "mean": np.concatenate([curve.mean for curve, _ in curves.values()]),
                "std": pa.array(np.concatenate([curve.deviation for curve, _ in curves.values()]), from_pandas=True),
            }
        ),
        partial(_draw, curves, (common, first, other), column),
    )


def _draw(
    curves: Mapping[str, tuple[Series, Configuration]],
    between: tuple[Int64s, Float64s, Float64s],
    column: str,
    axes: Axes,
) -> None:
    write = share if is_share(column) else loss
    axes.fill_between(*between, color=GREY, alpha=0.5, linewidth=0)
    for place, (name, (curve, one)) in enumerate(curves.items()):
        label = f"{name}, {short(one.values)}: {write(float(curve.mean[-1]))}"
        axes.plot(curve.rounds, curve.mean, **nth(place).line(len(curve.rounds), label))
    write_values(axes, is_share(column), spoken(column))
    over_rounds(axes)
