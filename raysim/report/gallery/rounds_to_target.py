"""Draws rounds to target accuracies along each key, and the speed-up of larger cohorts beside a linear one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.report import number_formats
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import lanes, reference_marks, run_cost, target
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.gallery.lanes import COHORT_SIZE, Lane
from raysim.report.gallery.target import Target
from raysim.report.groups import Group
from raysim.report.looks import CurveStyle, looks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BARS = "Bars: one standard deviation over the trials that reached it."
DESCRIBED_LANES = 3
"""Number of methods whose speed-up the caption states."""
MOST_PANELS = 6


def make(groups: Sequence[Group], targets: Sequence[float]) -> Iterator[Figure]:
    """Yield a figure for every key with lanes if accuracies were evaluated; of the cohort's size also the speed-up.

    Args:
        groups: of the report.
        targets: accuracies from 0 to 1; none: a share of the best.
    """
    aims = target.aims(groups, targets)
    if aims is None:
        return
    for along in lanes.every(groups):
        found = target.find(along, aims, run_cost.by_rounds)
        if not found:
            continue
        data = pa.concat_tables([one.table("rounds", "speed_up", lambda first, mean: first / mean) for one in found])
        missed = "".join(one.missed for one in found)
        is_cohort = along.key == COHORT_SIZE
        one_ideal = is_cohort and len(found) == 1
        ideal = " Dashed: as many times fewer rounds as there are more clients." if one_ideal else ""
        yield Figure(
            f"rounds-to-target{along.suffix}",
            f"Rounds to target accuracy against {'cohort size' if is_cohort else along.key}",
            f"{aims.caption}{missed}{ideal} {BARS}",
            data,
            _drawing(found, is_speed_up=False),
        )
        if is_cohort:
            yield Figure(
                "speed-up",
                "Speed-up by larger cohorts",
                f"{aims.caption}{missed} {_verdict(found[0])} Dashed: a linear speed-up. {BARS}",
                data,
                _drawing(found, is_speed_up=True),
            )


def _verdict(found: Target) -> str:
    """Return the speed-up of each lane's largest cohort, as text."""
    sentences = []
    for lane in found.along.lanes[:DESCRIBED_LANES]:
        if len(ends := found.met(lane)) > 1:
            (first, _, _), (last, mean, slowest) = ends[0], ends[-1]
            sentences.append(
                f"{lane.label}: {last.size / first.size:.3g} times the clients ({first.size:g} to {last.size:g}) are a "
                f"speed-up of {slowest / mean:.2g}."
            )
    return " ".join(sentences)


def _drawing(found: Sequence[Target], is_speed_up: bool) -> partial[None] | tuple[Panel, ...]:
    """One target: a line per lane. Several, as Charles et al. (2021), figures 20 to 24: a panel per lane."""
    if len(found) == 1:
        return partial(_lanes, found[0], is_speed_up)
    shown = [lane for lane in found[0].along.lanes if any(one.met(lane) for one in found)][:MOST_PANELS]
    return tuple(Panel(lane.label, partial(_targets, found, lane, is_speed_up)) for lane in shown)


def _lanes(found: Target, is_speed_up: bool, axes: Axes) -> None:
    for lane in found.along.lanes:
        _line(axes, found, lane, is_speed_up, lane.label if lane.look.is_named else None, lane.look)
    _frame(axes, found, is_speed_up)


def _targets(found: Sequence[Target], lane: Lane, is_speed_up: bool, axes: Axes) -> None:
    for one, look in zip(found, looks(one.target for one in found), strict=True):
        # Of several targets the ideal numbers of rounds would be as many lines again; the speed-ups share one.
        _line(axes, one, lane, is_speed_up, f"to {number_formats.asked_share(one.target)}", look, has_ideal=is_speed_up)
    _frame(axes, found[0], is_speed_up)


def _line(
    axes: Axes,
    found: Target,
    lane: Lane,
    is_speed_up: bool,
    label: str | None,
    look: CurveStyle,
    has_ideal: bool = True,
) -> None:
    met = found.met(lane)
    if not met:
        return
    sizes = [point.size for point, _, _ in met]
    amounts = [first / mean if is_speed_up else mean for _, mean, first in met]
    if has_ideal and found.along.key == COHORT_SIZE:
        ideal = [size / sizes[0] if is_speed_up else amounts[0] * sizes[0] / size for size in sizes]
        reference_marks.dashed(axes, sizes, ideal)
    # A speed-up has the relative deviation of its rounds; the smallest size is 1 by definition.
    per_round = [first / mean**2 if is_speed_up else 1.0 for _, mean, first in met]
    spread = [
        None if (std := point.reach.deviation) is None or (is_speed_up and point is met[0][0]) else std * scale
        for (point, _, _), scale in zip(met, per_round, strict=True)
    ]
    lanes.line(axes, label, look, sizes, amounts, spread)


def _frame(axes: Axes, found: Target, is_speed_up: bool) -> None:
    found.along.frame(axes)
    axes.set_yscale("log")
    axes.set_ylabel("speed-up over the smallest to reach it" if is_speed_up else "rounds")
    ticks.plain_logarithm(axes)
