"""Finds the cost to reach target accuracies, group by group and lane by lane, for rounds and times to target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from raysim.arrays import Float64s
from raysim.report import figures
from raysim.report.gallery.lanes import COHORT_SIZE, Along, Lane, values
from raysim.report.groups import Group, headline, written
from raysim.report.runs import Run
from raysim.report.series import crossing, over_trials

DEFAULT_SHARE = 0.95
"""The default target is this share of the best group's mean final accuracy."""


class Spent(NamedTuple):
    """The cost and the accuracy of a run at each of its evaluations; arrays of one shape."""

    spent: Float64s
    accuracies: Float64s


Cost = Callable[[Run, str], Spent | None]
"""(run, column) -> the cost at the column's evaluations; None if it is not known."""


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


class Aims(NamedTuple):
    """The targets, rising; `by` says where they come from."""

    column: str
    targets: tuple[float, ...]
    by: str

    @property
    def caption(self) -> str:
        """The targets, as a sentence."""
        named = ", ".join(map(figures.share, self.targets))
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
        """A sentence on those that did not reach it, or nothing."""
        names = ", ".join(
            f"{point.lane.label} with {self.along.ticks[point.size]} ({point.reach.missed} rounds)"
            for point in self.points
            if point.reach.mean is None
        )
        return f" Not reached by: {names}." if names else ""

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
        return Aims(column, tuple(sorted(set(targets))), "given")
    by = f"{figures.share(DEFAULT_SHARE)} of the best; --target takes another"
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


def by_rounds(run: Run, column: str) -> Spent | None:
    """Return the cost as finished rounds."""
    series = over_trials([run.rounds], column)
    return None if series is None else Spent(series.rounds.astype(np.float64), series.mean)


def by_local_steps(run: Run, column: str) -> Spent | None:
    """Return the cost as local steps so far, of a run on the pooled data; None if the examples are not recorded."""
    series = over_trials([run.rounds], column)
    if series is None or "examples_held" not in run.rounds.column_names:
        return None
    e, client = run.experiment, np.zeros(1, np.int64)
    held = run.rounds["examples_held"].to_numpy().astype(np.int64)
    steps = [e.client.work_at(t).steps(held[t : t + 1], e.seed, t, client)[0] for t in range(len(held))]
    return Spent(np.cumsum(steps, dtype=np.float64)[series.rounds - 1], series.mean)


def by_simulated_time(run: Run, column: str) -> Spent | None:
    """Return the cost as seconds of simulated time."""
    series, time = over_trials([run.rounds], column), over_trials([run.rounds], "simulated_time_s", cumulated=True)
    if series is None or time is None:
        return None
    return Spent(time.mean[np.searchsorted(time.rounds, series.rounds)], series.mean)


LEAST_WORK = {"client.epochs": 0, "client.local_steps": 0, "client.batch_size": -1}
"""Keys of a client's work -> the place, among the key's values in order, of the one that is least work."""


def base(groups: Sequence[Group]) -> dict[str, str]:
    """Return the keys and values that a group takes to be the one that its speed-up is over; others it keeps.

    That is the smallest cohort (McMahan et al. 2017, table 1). If cohorts do not differ it is the least work of a
    client, FedSGD (tables 2 and 4); if that does not differ either, the smallest of all numbers.
    """
    keys = dict.fromkeys(key for group in groups for key in group.keys)
    ordered = {key: list(settings) for key in keys if len(settings := values(groups, key)) > 1}
    if COHORT_SIZE in ordered:
        return {COHORT_SIZE: ordered[COHORT_SIZE][0]}
    work = {key: ordered[key][place] for key, place in LEAST_WORK.items() if key in ordered}
    is_number = {key: isinstance(values(groups, key)[settings[0]], int | float) for key, settings in ordered.items()}
    return work or {key: settings[0] for key, settings in ordered.items() if is_number[key]}


def base_of(groups: Sequence[Group], group: Group, at: Mapping[str, str]) -> Group | None:
    """Return the group with this one's keys, but for those of the base; None if it is not there."""
    wanted = {key: at.get(key, written(value)) for key, value in group.keys.items()}
    return next(
        (other for other in groups if {key: written(value) for key, value in other.keys.items()} == wanted), None
    )


def is_pooled(group: Group) -> bool:
    """Return whether a group trains on the pooled data of all clients."""
    return group.runs[0].experiment.pooled


def is_over_pooled(groups: Sequence[Group], at: Mapping[str, str]) -> bool:
    """Return whether speed-ups are over training on the pooled data (McMahan et al. 2017, table 3).

    They are if some groups do that, and if the others have no smallest cohort and no least work to be compared with.

    Args:
        groups: of the report.
        at: the base of those that are not pooled.
    """
    others = [group for group in groups if not is_pooled(group)]
    is_known = not at.keys().isdisjoint({COHORT_SIZE, *LEAST_WORK})
    found = [base_of(others, group, at) for group in others] if is_known else []
    return len(others) < len(groups) and all(
        base in (None, group) for base, group in zip(found, others[: len(found)], strict=True)
    )


def _points(lane: Lane, column: str, target: float, spent: Cost) -> Iterator[TargetPoint]:
    """Yield the lane's points, by rising size."""
    first: float | None = None
    for size, group in zip(lane.sizes, lane.groups, strict=True):
        reached = reach(group, column, target, spent)
        first = reached.mean if first is None else first
        yield TargetPoint(lane, size, reached, first)
