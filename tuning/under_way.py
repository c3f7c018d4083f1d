"""Defines a trial under way: its runs, one for each seed, and their reports so far."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from raysim import Experiment, Report
from tuning import standard_error
from tuning.ledger import Held
from tuning.objective import Objective
from tuning.trial_rows import TrialRows


class TrialUnderWay(TrialRows):
    """The state of a trial while it runs.

    runs: its experiments, one per seed, and their folders. numbers: of the runs under way, run number -> seed's place.
    reported: steps that `fresh_steps` returned. known_steps: steps that the storage had before.
    """

    def __init__(self, held: Held, runs: Sequence[tuple[Experiment, Path]]) -> None:
        super().__init__([experiment.seed for experiment, _ in runs], runs[0][0].rounds)
        self.held, self.runs = held, runs
        self.numbers: dict[int, int] = {}
        self.reported: set[int] = set()
        self.known_steps = frozenset(held.reported)

    def add(self, report: Report) -> int:
        """Add a report; return the place of its seed."""
        place = self.numbers[report.run]
        self.rows[place].extend(report.rows)
        if report.finished:
            self.finished.add(place)
        if report.finished or report.error is not None:
            del self.numbers[report.run]
        return place

    def fresh_steps(self, objective: Objective, by_seed: bool) -> dict[int, float]:
        """Return the steps that no call has returned before; see `steps`."""
        fresh = {step: value for step, value in self.steps(objective, by_seed).items() if step not in self.reported}
        self.reported |= fresh.keys()
        return fresh

    def over_clients(self, objective: Objective) -> float | None:
        """Return the root mean square over the seeds' last evaluations, whose clients may be the same."""
        if not self.is_complete or not objective.is_ratio:
            return None
        return standard_error.root_mean_square([standard_error.of_run(path, objective.name) for _, path in self.runs])
