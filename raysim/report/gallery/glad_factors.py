"""Draws FedGLAD's factor of every parameter group against rounds, between its bounds 1 -+ gamma t."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raysim.report.gallery import axes as ticks
from raysim.report.gallery.curves import MAX_POINTS
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group
from raysim.report.looks import INK, looks
from raysim.report.series import Floats, Ints, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PREFIX = "glad_factor/"
SHOWN_GROUPS = 4
"""Number of groups of runs with a separate figure."""

Factors = dict[str, tuple[Ints, Floats]]
"""Parameter group -> (finished rounds, mean factor over trials)."""


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for each of the first groups that used FedGLAD; parameter groups of one factor share a line."""
    number = 0
    for group in groups:
        factors = _factors(group)
        glad = group.runs[0].experiment.server.glad
        if not factors or glad is None:
            continue
        number += 1
        if number > SHOWN_GROUPS:
            return
        gamma = None if isinstance(glad.gamma, str) else glad.gamma
        bounds = "unbounded" if gamma is None else f"dashed: its bounds, 1 - {gamma:g} t and 1 + {gamma:g} t"
        data = pa.table(
            {
                "group": [group.label for rounds, _ in factors.values() for _ in rounds],
                "parameters": [name for name, (rounds, _) in factors.items() for _ in rounds],
                "round": np.concatenate([rounds for rounds, _ in factors.values()]),
                "mean": np.concatenate([values for _, values in factors.values()]),
            }
        )
        yield Figure(
            f"glad-factors-{number}",
            f"FedGLAD's factors: {group.label}",
            f"The factor on each parameter group's step, mean over trials; {bounds}. Above 1: clients agree "
            f"less than they used to.",
            data,
            partial(_draw, factors, gamma),
        )


def _factors(group: Group) -> Factors:
    names = [name for name in group.runs[0].rounds.column_names if name.startswith(PREFIX)]
    found: Factors = {}
    for name in names:
        series = group.series(name)
        if series is None:
            continue
        rows = thinned(len(series.rounds), MAX_POINTS)
        rounds, values = series.rounds[rows], series.mean[rows]
        twin = next((other for other, (_, drawn) in found.items() if np.array_equal(drawn, values)), None)
        if twin is None:
            found[name.removeprefix(PREFIX)] = (rounds, values)
    return found


def _draw(factors: Factors, gamma: float | None, axes: Axes) -> None:
    axes.axhline(1, color=INK, linewidth=0.8)
    far = [float(np.abs(values - 1).max()) for _, values in factors.values()]
    for look, (name, (rounds, values)) in sorted(
        zip(looks(far), factors.items(), strict=True), key=lambda pair: pair[0].is_named
    ):
        label = name if look.is_named else None
        axes.plot(rounds, values, color=look.colour, linestyle=look.dash, linewidth=look.width, label=label)
    low, high = axes.get_ylim()
    if gamma is not None:
        t = next(iter(factors.values()))[0].astype(np.float64) - 1
        for sign in (-1, 1):
            ticks.dashed(axes, t + 1, 1 + sign * gamma * t)
    axes.set_ylim(low, high)
    axes.set_xlabel("finished rounds")
    axes.set_ylabel("factor")
