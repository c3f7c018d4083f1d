"""Counts what a run has cost at each of its evaluations: rounds, local steps or simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from raysim.arrays import Float64s
from raysim.report.runs import Run
from raysim.report.series import over_trials


class Spent(NamedTuple):
    """The cost and the accuracy of a run at each of its evaluations; arrays of one shape."""

    spent: Float64s
    accuracies: Float64s


Cost = Callable[[Run, str], Spent | None]
"""(run, column) -> the cost at the column's evaluations; None if it is not known."""


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
