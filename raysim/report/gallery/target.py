"""Finds the cost to reach target accuracies, group by group and lane by lane, for rounds and times to target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from raysim.report import number_formats
from raysim.report.gallery.lanes import Along, Lane
from raysim.report.gallery.run_cost import Cost
from raysim.report.groups import Group, headline
from raysim.report.series import crossing

DEFAULT_SHARE = 0.95
"""The default target is this share of the best group's mean final accuracy."""


GIVEN = "given"
"""Where targets come from that a reader asked for."""


class Reach(NamedTuple):
    """`mean` and `deviation` over the trials that reached the target, `reached` of `trials`; None if none did.

    `rounds`: the most that a trial ran.
    """

    mean: float | None
    deviation: float | None
    reached: int
    trials: int
    rounds: int

    @property
    def missed(self) -> str:
        """What is said of a target that no trial reached."""
        return f"not in {self.rounds:,}"

    @property
    def is_partial(self) -> bool:
        """Whether some trials reached the target and some did not, so that the mean is not that of all."""
        return 0 < self.reached < self.trials


class Aims(NamedTuple):
    """The targets, rising; `by` says where they come from."""

    column: str
    targets: tuple[float, ...]
    by: str

    def written(self, target: float) -> str:
        """Return a target for people: what is a share of the best is rounded, what was asked for is not."""
        return number_formats.asked_share(target) if self.by == GIVEN else number_formats.share(target)

    @property
    def caption(self) -> str:
        """The targets, as a sentence."""
        named = ", ".join(map(self.written, self.targets))
        return f"The target{'s are' if len(self.targets) > 1 else ' is'} {named} ({self.by})."


class TargetPoint(NamedTuple):
    """A group of a lane. `first`: the mean of the lane's smallest value that reached the target."""

    lane: Lane
    size: float
    reach: Reach
    first: float | None


class Target(NamedTuple):
    """The points of lanes along a key, and the target that they aim at."""

    target: float
    along: Along
    points: Sequence[TargetPoint]

    def met(self, lane: Lane) -> list[tuple[TargetPoint, float, float]]:
        """The lane's points that reached the target, each with its mean and with the lane's first."""
        return [
            (point, point.reach.mean, point.first)
            for point in self.points
            if point.lane is lane and point.reach.mean is not None and point.first is not None
        ]

    @property
    def missed(self) -> str:
        """Sentences on those that did not reach it, and on those of which some trials did, or nothing."""
        none = [(p, f"{p.reach.missed} rounds") for p in self.points if not p.reach.reached]
        some = [(p, f"{p.reach.reached} of {p.reach.trials}") for p in self.points if p.reach.is_partial]
        return self._sentence("Not reached by", none) + self._sentence(
            "Reached by some trials only, whose mean is shown", some
        )

    def _sentence(self, what: str, points: Sequence[tuple[TargetPoint, str]]) -> str:
        names = ", ".join(f"{point.lane.label} with {self.along.ticks[point.size]} ({text})" for point, text in points)
        return f" {what}: {names}." if names else ""

    def table(self, amount: str, ratio: str, of: Callable[[float, float], float]) -> pa.Table:
        """Return one row per point: `amount` is the mean, `ratio` is of(first, mean)."""
        ratios = [
            None if point.reach.mean is None or point.first is None else of(point.first, point.reach.mean)
            for point in self.points
        ]
        sizes = [point.size if self.along.is_logarithmic else self.along.ticks[point.size] for point in self.points]
        return pa.table(
            {
                "group": [point.lane.label for point in self.points],
                self.along.key.replace(".", "_"): sizes,
                "target": [self.target] * len(self.points),
                amount: pa.array([point.reach.mean for point in self.points], pa.float64()),
                "std": pa.array([point.reach.deviation for point in self.points], pa.float64()),
                "reached": [point.reach.reached for point in self.points],
                "trials": [point.reach.trials for point in self.points],
                ratio: pa.array(ratios, pa.float64()),
            }
        )


def aims(groups: Sequence[Group], targets: Sequence[float]) -> Aims | None:
    """Return the targets, or DEFAULT_SHARE of the best where there are none; None if no accuracy was evaluated."""
    column = headline(groups)
    finals = [statistics.fmean(scores) for group in groups if (scores := group.finals(column))]
    if not finals or not column.endswith("accuracy"):
        return None
    if targets:
        return Aims(column, tuple(sorted(set(targets))), GIVEN)
    by = f"{number_formats.share(DEFAULT_SHARE)} of the best; --target takes another"
    return Aims(column, (DEFAULT_SHARE * max(finals),), by)


def reach(group: Group, column: str, target: float, spent: Cost) -> Reach:
    """Return the cost at which a group's trials reach the target."""
    known = [work for run in group.runs if (work := spent(run, column)) is not None]
    crossings = [crossing(one.spent, one.accuracies, target) for one in known]
    reached = [value for value in crossings if value is not None]
    mean = statistics.fmean(reached) if reached else None
    deviation = statistics.stdev(reached) if len(reached) > 1 else None
    return Reach(mean, deviation, len(reached), len(group.runs), max(run.rounds.num_rows for run in group.runs))


def find(along: Along, found: Aims, spent: Cost) -> list[Target]:
    """Return the targets that a group of these lanes reached, each with its points."""
    lanes = [
        Target(target, along, [point for lane in along.lanes for point in _points(lane, found.column, target, spent)])
        for target in found.targets
    ]
    return [one for one in lanes if any(point.reach.mean is not None for point in one.points)]


def _points(lane: Lane, column: str, target: float, spent: Cost) -> Iterator[TargetPoint]:
    """Yield the lane's points, by rising size."""
    first: float | None = None
    for size, group in zip(lane.sizes, lane.groups, strict=True):
        reached = reach(group, column, target, spent)
        first = reached.mean if first is None else first
        yield TargetPoint(lane, size, reached, first)
