"""Orders groups that differ in a numeric key into lanes, for figures against the cohort size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from raysim.report.gallery import axes as ticks
from raysim.report.groups import Group, written
from raysim.report.looks import CurveStyle, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COHORT_SIZE = "cohort.size"


class Lane(NamedTuple):
    """Groups that differ in this key only: `sizes` are its values, rising, one per group."""

    label: str
    look: CurveStyle
    sizes: tuple[float, ...]
    groups: tuple[Group, ...]


def lanes(groups: Sequence[Group], key: str = COHORT_SIZE) -> list[Lane]:
    """Return a lane for each combination of the other keys that has two or more values of `key`."""
    found: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for group in groups:
        if isinstance(group.keys.get(key), int | float):
            others = tuple((name, written(value)) for name, value in group.keys.items() if name != key)
            found.setdefault(others, []).append(group)
    rows = {others: sorted(row, key=lambda group: group.keys[key]) for others, row in found.items() if len(row) > 1}
    drawn = looks(-float(i) for i in range(len(rows)))
    return [
        Lane(
            ", ".join(f"{name} = {value}" for name, value in others) or row[0].runs[0].experiment.name,
            look,
            tuple(float(group.keys[key]) for group in row),
            tuple(row),
        )
        for (others, row), look in zip(rows.items(), drawn, strict=True)
    ]


def draw(
    axes: Axes, lane: Lane, sizes: Sequence[float], values: Sequence[float], deviations: Sequence[float | None] = ()
) -> None:
    """Draw a lane's line, a mark at each size, with bars of one deviation if there are deviations."""
    axes.errorbar(
        sizes,
        values,
        yerr=[deviation or 0.0 for deviation in deviations] or None,
        color=lane.look.colour,
        linestyle=lane.look.dash,
        linewidth=lane.look.width,
        marker="o",
        markersize=4,
        capsize=2.5,
        label=lane.label if lane.look.is_named else None,
    )


def frame(axes: Axes, shown: Sequence[Lane]) -> None:
    """Set up the x axis of figures against cohort size: a tick at every size of the lanes."""
    ticks.sizes(axes, sorted({size for lane in shown for size in lane.sizes}))
    axes.set_xlabel("clients in a round")
