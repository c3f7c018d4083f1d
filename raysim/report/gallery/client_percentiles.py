"""Draws percentiles of accuracy over clients, a box per group: from the 25th to the 75th, a line at the median."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from raysim.config.percentile_name import percentile_name
from raysim.report.column_names import headlines, percentiles
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group, groups_to_list
from raysim.report.looks import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOX = (25.0, 50.0, 75.0)
_, MEDIAN, _ = BOX


class _Box(NamedTuple):
    """Percentile -> its mean over the trials that have it, and the deviation; how many have the median."""

    group: Group
    values: dict[float, float]
    deviations: dict[float, float | None]
    trials: int


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for every split whose quartiles were recorded."""
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.rounds.column_names)
    for split in headlines(names):
        columns = percentiles(names, split)
        if not set(BOX) <= set(columns):
            continue
        boxes = [box for group in groups if (box := _box(group, columns)) is not None]
        # A split of one pooled client has no spread.
        if not any(len(set(box.values.values())) > 1 for box in boxes):
            continue
        labels = {group.label for group in groups_to_list(groups)}
        shown = [box for box in boxes if box.group.label in labels]
        named = {each: percentile_name(each) for each in columns}
        data = pa.table(
            {
                "group": [box.group.label for box in boxes],
                **{name: [box.values[each] for box in boxes] for each, name in named.items()},
                **{
                    f"{name}_std": pa.array([box.deviations[each] for box in boxes], pa.float64())
                    for each, name in named.items()
                },
                "trials": [box.trials for box in boxes],
            }
        )
        low, high = (f"{named[each].removeprefix('p')}th" for each in (min(columns), max(columns)))
        yield Figure(
            f"clients-{split}-percentiles",
            f"Accuracy of {split} clients: percentiles",
            f"Box: 25th to 75th percentile of clients in the newest evaluation, line: median; whiskers: {low} and "
            f"{high}. Means over trials.",
            data,
            partial(_draw, shown),
            height_in=1.4 + 0.3 * len(shown),
        )


def _box(group: Group, columns: dict[float, str]) -> _Box | None:
    values = {percentile: group.finals(name) for percentile, name in columns.items()}
    if not all(values.values()):
        return None
    return _Box(
        group,
        {percentile: statistics.fmean(found) for percentile, found in values.items()},
        {percentile: lanes.deviation(found) for percentile, found in values.items()},
        len(values[MEDIAN]),
    )


def _draw(shown: Sequence[_Box], axes: Axes) -> None:
    stats = [
        {
            "whislo": box.values[min(box.values)],
            "q1": box.values[25.0],
            "med": box.values[50.0],
            "q3": box.values[75.0],
            "whishi": box.values[max(box.values)],
        }
        for box in shown
    ]
    drawn = axes.bxp(
        stats,
        positions=list(range(len(shown)))[::-1],
        orientation="horizontal",
        showfliers=False,
        patch_artist=True,
        widths=0.55,
        medianprops={"color": INK, "linewidth": 1.8},
        whiskerprops={"color": INK},
        capprops={"color": INK},
    )
    for patch, box in zip(drawn["boxes"], shown, strict=True):
        patch.set(facecolor=box.group.look.colour, edgecolor=INK, alpha=0.75)
    ticks.rows(axes, [box.group.label for box in shown])
    ticks.shares(axes, "x")
    axes.set_xlabel("accuracy of a client")
