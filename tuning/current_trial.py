"""Defines a trial under way: its runs, one for each seed, and their reports so far."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim import Experiment, Report
from raysim.run_folder.experiment_record import stored_fingerprint
from tuning import standard_error
from tuning.in_order import InOrder, SeedNews
from tuning.ledger import Held
from tuning.objective import Objective
from tuning.trial_rows import COHORT, RUNS, TrialRows


class TrialUnderWay:
    """The state of a trial while it runs.

    stage: its place among the stages, whose steps are 1, 2, ... if there are several. runs: the stage's experiments,
    one per seed, and their folders. recorded: the rows of these runs so far. numbers: of the runs under way, run
    number -> seed's place. reported: steps that `fresh_steps` returned. known_steps: what the storage had
    before.
    """

    def __init__(self, held: Held, stages: Sequence[Sequence[tuple[Experiment, Path]]], by_seed: bool) -> None:
        """`by_seed`: the seeds run one after the other, else at the same time."""
        self.recorded = TrialRows([experiment.seed for experiment, _ in stages[0]], stages[0][0][0].rounds)
        self.held, self._stages, self.stage, self.runs = held, stages, 0, stages[0]
        self.numbers: dict[int, int] = {}
        self.reported: set[int] = set()
        self.known_steps = held.reported
        self._by_seed = by_seed
        self._reports = self._of_stage()

    def add(self, report: Report) -> Iterator[SeedNews]:
        """Add a report; yield what `recorded` then gets, one after the other, in the order of one process."""
        place = self.numbers[report.run]
        reports = self._reports[place if self._by_seed else 0]
        reports.add(0 if self._by_seed else place, report)
        if report.finished or report.error is not None:
            del self.numbers[report.run]
        for news in reports.take():
            told = replace(news, place=place) if self._by_seed else news
            self.recorded.add(told.place, told.rows, told.finished)
            yield told

    def _of_stage(self) -> list[InOrder]:
        """Return one order for all seeds, or one for each if they do not run at the same time."""
        runs = [experiment for experiment, _ in self.runs]
        return [InOrder([run]) for run in runs] if self._by_seed else [InOrder(runs)]

    @property
    def is_at_end(self) -> bool:
        """True if every seed of the last stage is finished."""
        return self.recorded.is_complete and self.stage == len(self._stages) - 1

    @property
    def went_on(self) -> bool:
        """True if the storage has a later step than those reported: the trial was not stopped at these before."""
        return max(self.known_steps, default=-1) > max(self.reported, default=-1)

    @property
    def rounds_left(self) -> int:
        """Rounds that were not reported yet, of all stages."""
        stages = len(self._stages) - self.stage
        known = sum(map(len, self.recorded.rows)) + sum(reports.num_waiting for reports in self._reports)
        return stages * len(self.runs) * self.recorded.total - known

    def advance(self) -> None:
        """Go on to the next stage, which has no rows yet."""
        self.stage += 1
        self.runs, self.recorded = self._stages[self.stage], self.recorded.of_next_stage()
        self._reports = self._of_stage()

    def steps(self, objective: Objective, by_seed: bool) -> dict[int, float]:
        """See `TrialRows.steps`; of several stages, finished stages -> value."""
        if len(self._stages) == 1:
            return self.recorded.steps(objective, by_seed)
        return {self.stage + 1: self.recorded.value(objective)} if self.recorded.is_complete else {}

    def fresh_steps(self, objective: Objective, by_seed: bool) -> dict[int, float]:
        """Return the steps that no call has returned before; see `steps`."""
        fresh = {step: value for step, value in self.steps(objective, by_seed).items() if step not in self.reported}
        self.reported |= fresh.keys()
        return fresh

    def facts(self, objective: Objective) -> dict[str, Any]:
        """See `TrialRows.facts`, with the fingerprints of finished runs; of several stages with the present cohort."""
        found = self.recorded.facts(objective, self._over_clients(objective))
        if self.recorded.is_complete:
            found[RUNS] = [stored_fingerprint(path) for _, path in self.runs]
        return found if len(self._stages) == 1 else {**found, COHORT: self.runs[0][0].cohort.size}

    def _over_clients(self, objective: Objective) -> float | None:
        """Return the root mean square over the seeds, whose clients may be the same."""
        if not self.recorded.is_complete or not objective.is_ratio:
            return None
        # As of the value: a run that `[stop]` has ended is measured by its own last rounds.
        counted = [objective.rounds(len(rows)) for rows in self.recorded.rows]
        return standard_error.root_mean_square(
            [
                standard_error.of_run(path, objective.name, rounds)
                for (_, path), rounds in zip(self.runs, counted, strict=True)
            ]
        )
