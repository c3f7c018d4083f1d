"""Computes mean and deviation of a recorded figure over several trials, round by round, and where it meets a target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.arrays import Bools, Float64s, Int64s

LARGEST = 1e150
"""Of numbers in pictures: sums of squares of larger ones, and the ends of an axis around them, are not finite."""


class Series(NamedTuple):
    """Row i belongs to `rounds[i]` finished rounds, in rising order; all arrays have one shape, (rows,).

    mean: over the trials that have the figure in that round. deviation: of a sample (divisor n - 1), NaN if fewer than
    two trials have the figure. trials: the number of trials that have it, at least 1.
    """

    rounds: Int64s
    mean: Float64s
    deviation: Float64s
    trials: Int64s

    def at(self, rows: Int64s) -> Series:
        """Return these rows only."""
        return Series(self.rounds[rows], self.mean[rows], self.deviation[rows], self.trials[rows])


class MeanCourse(NamedTuple):
    """A mean over trials: `values[i]` after `rounds[i]` finished rounds, in rising order."""

    rounds: Int64s
    values: Float64s


def over_trials(
    trials: Sequence[pa.Table], column: str, cumulated: bool = False, best_so_far: bool = False
) -> Series | None:
    """Return the column's series; None if no trial has a value.

    Args:
        trials: the rounds of each trial, as `Result.rounds`.
        column: of numbers; null if a figure is undefined.
        cumulated: first cumulate each trial's values; undefined values count 0.
        best_so_far: first replace each trial's values by the best until then: the least loss, else the largest value.
    """
    parts = _parts(trials, column, cumulated)
    if best_so_far:
        best = np.minimum if column.endswith("loss") else np.maximum
        parts = [(rounds, best.accumulate(values)) for rounds, values in parts]
    if not parts:
        return None
    after, values = _aligned(parts)
    count = (~np.isnan(values)).sum(0)
    mean = np.nansum(values, 0) / count
    squares = np.nansum((values - mean) ** 2, 0)
    deviation = np.full(len(after), np.nan)
    np.divide(squares, count - 1, out=deviation, where=count > 1)
    return Series(after, mean, np.sqrt(deviation), count)


def rising(trials: Sequence[pa.Table], column: str, cumulated: bool = False) -> MeanCourse | None:
    """Return the mean over trials of a quantity that never falls, such as time; None if no trial has a value.

    Where a trial ends before the others, the mean goes on by the others' steps: their mean may lie below it.

    Args:
        trials: as for `over_trials`, and so is `column`.
        cumulated: first cumulate each trial's values.
    """
    parts = _parts(trials, column, cumulated)
    if not parts:
        return None
    after, values = _aligned(parts)
    if not np.isnan(values).any():
        return MeanCourse(after, values.mean(0))
    steps = np.diff(values)
    known = np.maximum((~np.isnan(steps)).sum(0), 1)
    return MeanCourse(after, np.nanmean(values[:, 0]) + np.cumsum(np.concatenate([[0.0], np.nansum(steps, 0) / known])))


def left_out(rounds: pa.Table) -> dict[str, int]:
    """Return how many of a trial's values no series has, because they are too large or not finite; by their column."""
    counts = {
        field.name: int((~_is_kept(_numbers(rounds, field.name))).sum()) - rounds[field.name].null_count
        for field in rounds.schema
        if pa.types.is_floating(field.type)
    }
    return {name: count for name, count in counts.items() if count}


def without_large(clients: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """Return clients with no value in place of one that is too large for a picture, and the number of these by column.

    Args:
        clients: the figures of clients; those that are not finite stay, and say that a client has diverged.
    """
    counts: dict[str, int] = {}
    for place, field in enumerate(clients.schema):
        if pa.types.is_floating(field.type):
            values = _numbers(clients, field.name)
            is_large = np.isfinite(values) & ~_is_kept(values)
            if count := int(is_large.sum()):
                counts[field.name] = count
                kept = pc.if_else(pa.array(is_large), pa.scalar(None, field.type), clients.column(place))
                clients = clients.set_column(place, field, kept)
    return clients, counts


def last_of(rounds: pa.Table, column: str) -> float | None:
    """Return one trial's newest value; None if it has none."""
    if column not in rounds.column_names:
        return None
    _, values = _finite(rounds, column, cumulated=False)
    return float(values[-1]) if len(values) else None


def crossing(spent: Float64s, accuracies: Float64s, target: float) -> float | None:
    """Return the cost at which the accuracies' running maximum reaches the target, interpolated; None if never.

    Source: McMahan et al. (2017), section 3. A curve that begins above the target reaches it in its first evaluation.
    """
    best = np.maximum.accumulate(accuracies)
    if not len(best) or best[-1] < target:
        return None
    after = int(np.argmax(best >= target))
    if after == 0:
        return float(spent[0])
    if not np.isfinite(best[after - 1 : after + 1]).all():
        # Between a number and infinity nothing is interpolated.
        return float(spent[after])
    part = (target - best[after - 1]) / (best[after] - best[after - 1])
    return float(spent[after - 1] + part * (spent[after] - spent[after - 1]))


def thin_out(count: int, most: int) -> Int64s:
    """Return the indices of at most `most` of `count` points at even distances, the first and last included."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(np.int64))


def _parts(trials: Sequence[pa.Table], column: str, cumulated: bool) -> list[tuple[Int64s, Float64s]]:
    """Return (finished rounds, values) of each trial that has values."""
    parts = [_finite(rounds, column, cumulated) for rounds in trials if column in rounds.column_names]
    return [part for part in parts if len(part[0])]


def _aligned(parts: Sequence[tuple[Int64s, Float64s]]) -> tuple[Int64s, Float64s]:
    """Return the rounds that a trial has, and the values, (trials, rounds); NaN where a trial has none."""
    after = np.unique(np.concatenate([rounds for rounds, _ in parts]))
    values = np.full((len(parts), len(after)), np.nan)
    for row, (rounds, found) in zip(values, parts, strict=True):
        row[np.searchsorted(after, rounds)] = found
    return after, values


def _finite(rounds: pa.Table, column: str, cumulated: bool) -> tuple[Int64s, Float64s]:
    """Return (finished rounds, values) of the rows with a finite value; a row's index counts from 0."""
    values = _numbers(rounds, column)
    kept = _is_kept(values)
    after = rounds["round"].to_numpy().astype(np.int64) + 1
    if cumulated:
        return after, np.cumsum(np.where(kept, values, 0.0))
    return after[kept], values[kept]


def _numbers(rounds: pa.Table, column: str) -> Float64s:
    """Return the column; null is NaN."""
    values: Float64s = pc.cast(rounds[column], pa.float64(), safe=False).to_numpy().astype(np.float64)
    return values


def _is_kept(values: Float64s) -> Bools:
    return np.abs(values) <= LARGEST
