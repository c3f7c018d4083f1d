"""Orders groups that differ in one key into lanes, for figures with the values of that key on the x axis."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.report.gallery import axes as ticks
from raysim.report.groups import Group, with_names, written
from raysim.report.looks import CurveStyle, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COHORT_SIZE = "cohort.size"
SPOKEN = MappingProxyType({COHORT_SIZE: "clients in a round"})
"""What an axis calls a key; other keys have their own names there."""


class Lane(NamedTuple):
    """Groups that differ in this key only, one per value, in the values' order.

    `sizes`: the values' places on the x axis. For a key whose values are all positive these are the values.
    """

    label: str
    look: CurveStyle
    sizes: tuple[float, ...]
    groups: tuple[Group, ...]


class Along(NamedTuple):
    """The lanes along a key. `label`: of the x axis. `ticks`: a place there -> the value that is written."""

    key: str
    label: str
    ticks: dict[float, str]
    is_logarithmic: bool
    lanes: tuple[Lane, ...]

    @property
    def suffix(self) -> str:
        """The end of a figure's name: nothing for the size of the cohort."""
        return "" if self.key == COHORT_SIZE else f"-by-{self.key}"

    def frame(self, axes: Axes) -> None:
        """Set up the x axis: a tick at every value of the lanes, also where nothing is drawn."""
        for place in self.ticks:
            axes.axvline(place, linewidth=0)
        ticks.places(axes, self.ticks, self.is_logarithmic)
        axes.set_xlabel(self.label)


def values(groups: Sequence[Group], key: str) -> dict[str, Any]:
    """Return a key's values by their text: numbers first, rising; then texts such as "full", as they appear."""
    found = {written(group.keys[key]): group.keys[key] for group in groups if key in group.keys}
    numbers = [name for name, value in found.items() if _is_number(value)]
    texts = [name for name in found if name not in numbers]
    return {name: found[name] for name in (*sorted(numbers, key=lambda name: float(found[name])), *texts)}


def lanes(groups: Sequence[Group], key: str = COHORT_SIZE) -> Along | None:
    """Return a lane for each combination of the other keys that has two or more values of `key`.

    None if there is none, or the key's values have no order: fewer than two of them are numbers. A text stands after
    the largest number, so a batch that is "full" is the largest.
    """
    found = values(groups, key)
    if sum(map(_is_number, found.values())) < 2:
        return None
    is_logarithmic = all(_is_number(value) and value > 0 for value in found.values())
    places = {name: float(found[name]) if is_logarithmic else float(i) for i, name in enumerate(found)}
    rows: dict[tuple[tuple[str, str], ...], dict[float, Group]] = {}
    for group in groups:
        if key in group.keys:
            others = tuple((name, written(value)) for name, value in group.keys.items() if name != key)
            rows.setdefault(others, {})[places[written(group.keys[key])]] = group
    long = {others: dict(sorted(row.items())) for others, row in rows.items() if len(row) > 1}
    if not long:
        return None
    names = groups[0].names
    drawn = looks(-float(i) for i in range(len(long)))
    made = tuple(
        Lane(
            with_names(", ".join(f"{name} = {value}" for name, value in others), names)
            or next(iter(row.values())).runs[0].experiment.name,
            look,
            tuple(row),
            tuple(row.values()),
        )
        for (others, row), look in zip(long.items(), drawn, strict=True)
    )
    shown = {place for lane in made for place in lane.sizes}
    label = names.get(key) or SPOKEN.get(key, key)
    return Along(key, label, {place: name for name, place in places.items() if place in shown}, is_logarithmic, made)


def every(groups: Sequence[Group]) -> list[Along]:
    """Return the lanes along each key that has some: the size of the cohort first."""
    keys = dict.fromkeys(key for group in groups for key in group.keys)
    ordered = sorted(keys, key=lambda key: key != COHORT_SIZE)
    return [along for key in ordered if (along := lanes(groups, key)) is not None]


def draw(
    axes: Axes,
    lane: Lane,
    sizes: Sequence[float],
    values: Sequence[float],
    deviations: Sequence[float | None] = (),
    across: Sequence[float | None] = (),
) -> None:
    """Draw a lane's line, a mark at each size, with bars of one deviation if there are any; `across`: along x."""
    line(axes, lane.label if lane.look.is_named else None, lane.look, sizes, values, deviations, across)


def line(
    axes: Axes,
    label: str | None,
    look: CurveStyle,
    sizes: Sequence[float],
    values: Sequence[float],
    deviations: Sequence[float | None] = (),
    across: Sequence[float | None] = (),
) -> None:
    """Draw a line with a mark at each size; see `draw`."""
    axes.errorbar(
        sizes,
        values,
        yerr=bars(deviations),
        xerr=bars(across),
        capsize=2.5,
        elinewidth=0.8,
        **look.points(label),
    )


def bars(deviations: Sequence[float | None]) -> list[float] | None:
    """Return the lengths of error bars as matplotlib takes them: NaN is none; None without any."""
    if all(deviation is None for deviation in deviations):
        return None
    return [math.nan if deviation is None else deviation for deviation in deviations]


def deviation(values: Sequence[float]) -> float | None:
    """Return the standard deviation over trials (divisor n - 1); None with one trial."""
    return statistics.stdev(values) if len(values) > 1 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
