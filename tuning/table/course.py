"""Computes the course of every configuration of a table: what a trial of it does, whichever tuner asks for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysim.experiment.row import Row
from tuning import standard_error
from tuning.client_sums import weight_column
from tuning.kept_trial import DIVERGED, FAILED, FINISHED, MISSED
from tuning.objective import Objective, divergence
from tuning.table.record import ACCURACIES, LOSSES, PublishedTable
from tuning.trial_rows import COHORT, TrialRows


@dataclass(frozen=True)
class Course:
    """A trial from its begin to its end.

    outcome: of a trial that no pruner stops. value: if it has one. steps: for pruners, see `TrialRows.steps`. facts:
    see `TrialRows.facts`, with "why". rows: of its runs. by_seed: steps are the places of seeds, not rounds.
    """

    outcome: str
    value: float | None
    steps: Mapping[int, float]
    facts: Mapping[str, Any]
    rows: TrialRows
    by_seed: bool
    _cut: dict[int, Mapping[str, Any]] = field(default_factory=dict, repr=False)

    def cut(self, step: int) -> Mapping[str, Any]:
        """Return the facts of a trial that was stopped after a step."""
        if step not in self._cut:
            of_all = self.rows
            left = [[*rows] if place <= step else [] for place, rows in enumerate(of_all.rows)]
            rows = left if self.by_seed else [rows[:step] for rows in of_all.rows]
            stopped = TrialRows(of_all.seeds, of_all.total, rows)
            # Studies on one table stop many trials at the same step.
            self._cut[step] = {**stopped.facts(Objective()), "why": None}
        return self._cut[step]


def courses(table: PublishedTable, objective: Objective, by_seed: bool) -> list[Course]:
    """Return the course of every configuration, in the table's order; `by_seed`: pruners look at seeds."""
    return [_course(table, runs, objective, by_seed) for runs in table.rows]


def _course(table: PublishedTable, runs: Sequence[list[Row]], objective: Objective, by_seed: bool) -> Course:
    total = table.experiment.rounds
    why = next((found for rows in runs if (found := divergence(rows)) is not None), None)
    shortest = min(map(len, runs))
    if why is None and shortest < total:
        why = f"a server step made the model non-finite after {shortest} rounds"
    trial = TrialRows(table.seeds, total, [list(rows) for rows in runs], set() if why else set(range(len(runs))))
    if why is not None:
        steps = {} if by_seed else trial.steps(objective, by_seed)
        return Course(DIVERGED, None, steps, {**trial.facts(objective), "why": why}, trial, by_seed)
    if (lacks := trial.lacks(objective)) is not None:
        return Course(FAILED, None, {}, {**trial.facts(objective), "why": lacks}, trial, by_seed)
    errors = (
        [standard_error.of_evaluations(counted_scores(table, rows, objective), objective.name) for rows in runs]
        if objective.is_ratio
        else []
    )
    missed = trial.missed(objective)
    return Course(
        MISSED if missed else FINISHED,
        trial.value(objective),
        trial.steps(objective, by_seed),
        {**trial.facts(objective, standard_error.root_mean_square(errors)), "why": missed},
        trial,
        by_seed,
    )


def staged(stages: Sequence[Course], sizes: Sequence[int | None]) -> Course:
    """Return the course of a trial that is run with one size of cohort after the other, whose steps are 1, 2, ...

    It ends with the first stage that has no value.
    """
    reached = 1 + next((i for i, stage in enumerate(stages) if stage.value is None), len(stages) - 1)
    spent, cut = Counter[str](), dict[int, Mapping[str, Any]]()
    for step, (stage, size) in enumerate(zip(stages[:reached], sizes, strict=False), start=1):
        spent.update(stage.facts["spent"])
        cut[step] = {**stage.facts, "spent": dict(spent), COHORT: size, "why": None}
    last = stages[reached - 1]
    steps = {step: stage.value for step, stage in enumerate(stages[:reached], start=1) if stage.value is not None}
    facts = {**cut[reached], "why": last.facts["why"]}
    return Course(last.outcome, last.value, steps, facts, last.rows, by_seed=False, _cut=cut)


def scores(table: PublishedTable, row: Row) -> list[Row]:
    """Return an evaluation as `clients/round-*.parquet` has it: a row for each client that is seen."""
    clients = table.clients
    weights = {weight_column(figure): each for figure, each in clients.weights.items()}
    columns = {
        "client": clients.names,
        "examples": clients.examples,
        **weights,
        "loss": row[LOSSES],
        "accuracy": row[ACCURACIES],
    }
    every = (dict(zip(columns, each, strict=True)) for each in zip(*columns.values(), strict=True))
    return [each for each in every if each["loss"] is not None]


def counted_scores(table: PublishedTable, rows: Sequence[Row], objective: Objective) -> list[list[Row]]:
    """Return the evaluations of a run that count for its value, each by client."""
    return [scores(table, rows[index]) for index in objective.rounds(len(rows)) if index < len(rows)]
