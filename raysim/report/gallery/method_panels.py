"""Draws curves of many groups in a panel for each method, a line per cohort size or per value of another number.

One picture of so many lines would name only the best. Source: Charles et al. (2021), figures 11 to 17 and 29 to 36.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.report.column_names import spoken
from raysim.report.gallery import curves, lanes
from raysim.report.gallery.curves import Against, GroupCurve
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.groups import Group, headline, setting
from raysim.report.looks import NAMED, CurveStyle, nth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_PANELS = 12


def of_headline(groups: Sequence[Group], against: Against = curves.ROUNDS) -> Iterator[Figure]:
    """Yield the panels of the column that best measures a model."""
    yield from make(groups, headline(groups), against)


def make(groups: Sequence[Group], column: str, against: Against = curves.ROUNDS) -> Iterator[Figure]:
    """Yield one figure if groups are more than one picture names, and differ in a number and in another key."""
    along = next(iter(lanes.every(groups)), None) if len(groups) > NAMED else None
    if along is None or len(along.lanes) < 2:
        return
    look_of = {place: nth(number) for number, place in enumerate(along.ticks)}
    names = {place: setting(along.key, name) for place, name in along.ticks.items()}
    panels, tables = [], []
    titles = _titles([lane.label for lane in along.lanes])
    for lane, title in list(zip(along.lanes, titles, strict=True))[:MOST_PANELS]:
        if found := curves.lines(lane.groups, column, against):
            places = dict(zip((group.label for group in lane.groups), lane.sizes, strict=True))
            drawn = [_as(line, names[place], look_of[place]) for line in found for place in [places[line.group.label]]]
            panels.append(Panel(title, partial(_draw, drawn, column, against)))
            tables.append(curves.table(found, against))
    if not panels:
        return
    left_out = len(along.lanes) - len(panels)
    more = f" The first {len(panels)} of {len(along.lanes)} methods." if left_out else ""
    what = "rounds" if against is curves.ROUNDS else against.label
    yield Figure(
        f"{column}-by-{against.name}-of-each-method",
        f"{spoken(column).capitalize()} against {what}, of each method",
        f"Mean over trials, with one standard deviation either way.{more}",
        pa.concat_tables(tables),
        tuple(panels),
        shares_x=True,
    )


def _titles(labels: Sequence[str]) -> list[str]:
    """Return the labels, without the key where all have the same one.

    >>> _titles(["server.optimizer = sgd", "server.optimizer = adam"])
    ['sgd', 'adam']
    """
    pairs = [label.split(" = ") for label in labels]
    return [pair[-1] for pair in pairs] if {len(pair) for pair in pairs} == {2} else list(labels)


def _as(line: GroupCurve, label: str, look: CurveStyle) -> GroupCurve:
    return line._replace(group=replace(line.group, label=label, look=look))


def _draw(found: Sequence[GroupCurve], column: str, against: Against, axes: Axes) -> None:
    curves.draw(axes, found, column, against)
