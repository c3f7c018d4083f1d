"""Compares tuners on a table: any-time regret, and mean ranks, over many studies of one budget.

Source: FedHPO-B (Wang et al. 2022) compares tuners by the mean rank of their incumbents over the budget. An incumbent
is the configuration that a study would choose; its regret is how much the best of the table is better than it, by all
validation clients, whatever scores the tuner has seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from optuna.trial import FrozenTrial

from raysim import Experiment, ExperimentError
from raysim.arrays import Float64s
from raysim.report.ties import levelled
from tuning import pruners, section
from tuning.budget import StudyBudget
from tuning.log_filter import quiet_rounds
from tuning.objective import Objective
from tuning.result import incumbents
from tuning.section import TuningSection
from tuning.table.course import Course, courses
from tuning.table.play import PLACE, play
from tuning.table.record import PublishedTable
from tuning.table.study import best_of, check, remarks, sample_of, told_by

log = logging.getLogger("raysim")

POINTS = 40
"""Amounts of the budget at which tuners are compared."""


@dataclass(frozen=True)
class TunerComparison:
    """How tuners compare.

    name: of the experiment. objective: the optimised figure. budget: of each study. studies: of each tuner. table: a
    row for each tuner and amount: tuner, spent, regret (mean over the studies), regret/standard_error, rank (mean; 1 is
    best), rank/standard_error.
    """

    name: str
    objective: Objective
    budget: StudyBudget
    studies: int
    table: pa.Table

    def last(self) -> list[Mapping[str, Any]]:
        """Return the rows of the whole budget, the best mean rank first."""
        rows = self.table.to_pylist()
        most = max(row["spent"] for row in rows)
        return sorted((row for row in rows if row["spent"] == most), key=lambda row: (row["rank"], row["tuner"]))


def compare(experiment: Experiment, table: PublishedTable, tuners: Sequence[str], studies: int) -> TunerComparison:
    """Play studies of each tuner, with the seeds 0, 1, ... of their samplers.

    Args:
        experiment: with a `[tuning]` that has a budget, and whose space is the table's.
        tuners: names of samplers; "tpe+median" has a pruner, too. Both have their default keys.

    Raises:
        ExperimentError: a tuner that does not exist, or is not defined on the space; there is no budget; or the table
            is of another experiment.
    """
    own = section.section_of(experiment)
    if own.budget is None:
        raise ExperimentError(
            "Tuners are compared by one budget, but tuning.budget is absent: add it, such as budget = { client_updates "
            "= 20_000 }."
        )
    if len(set(tuners)) != len(tuners):
        raise ExperimentError(f"Every tuner is compared once, but got {', '.join(tuners)}.")
    named = {name: section_of_tuner(experiment, name) for name in tuners}
    check(experiment, own, table)
    for remark in [*_remarks(own), *remarks(experiment, own, "raysim tuners")]:
        log.warning("%s", remark)
    whole = courses(table, own.objective, by_seed=False)
    best = best_of(table, whole, own).value
    spent = np.linspace(0, own.budget.amount, POINTS + 1)[1:]
    regrets: list[list[Float64s]] = [[] for _ in named]
    told: dict[bool, list[Course]] = {}
    with quiet_rounds():
        for study in range(studies):
            if sample_of(table, experiment) is not None:
                # Each study sees other clients.
                told = {}
            for of_tuner, tuning in zip(regrets, named.values(), strict=True):
                by_seed = pruners.looks_at_seeds(tuning.pruner)
                if by_seed not in told:
                    told[by_seed] = told_by(table, experiment, tuning, study)
                trials = play(table, told[by_seed], tuning, study, f"{experiment.name}-{study}")
                of_tuner.append(_regrets(trials, whole, own.objective, own.budget.unit, spent, best))
    largest = max(abs(course.value) for course in whole if course.value is not None)
    rows = _table(tuple(named), spent, np.array(regrets), largest)
    return TunerComparison(experiment.name, own.objective, own.budget, studies, rows)


def _remarks(own: TuningSection) -> Iterator[str]:
    """Yield a sentence for keys that are set, and that tuners do not have."""
    if unused := [f"tuning.{key}" for key in ("sampler", "pruner") if key in own.model_fields_set]:
        yield f"raysim tuners does not use {', '.join(unused)}: tuners are those of --tuner, with their default keys"


def section_of_tuner(experiment: Experiment, name: str) -> TuningSection:
    """Return the experiment's `[tuning]` with the sampler, and the pruner, of a tuner's name."""
    sampler, _, pruner = name.partition("+")
    keys = {"sampler": {"name": sampler}, "pruner": {"name": pruner or "none"}}
    try:
        return section.checked_section({**(experiment.tuning or {}), **keys}, experiment)
    except ExperimentError as error:
        raise ExperimentError(f"The tuner {name!r}: {error}") from None


def _regrets(
    trials: Sequence[FrozenTrial],
    courses: Sequence[Course],
    objective: Objective,
    unit: str,
    spent: Float64s,
    best: float,
) -> Float64s:
    """Return the incumbent's regret at each amount; before the first one that of the table's worst configuration."""
    values = [course.value for course in courses if course.value is not None]
    regrets = np.full(len(spent), max(abs(best - value) for value in values))
    for since, trial in incumbents(trials, objective, unit):
        value = courses[trial.user_attrs[PLACE]].value
        assert value is not None
        regrets[spent >= since] = abs(best - value)
    return regrets


def _table(tuners: Sequence[str], spent: Float64s, regrets: Float64s, largest: float) -> pa.Table:
    """Return the comparison's rows; `regrets` by tuner, study and amount, of values that are at most `largest`."""
    from scipy.stats import rankdata  # slow to import

    ranks = rankdata(np.apply_along_axis(levelled, 0, regrets, scale=largest), axis=0)
    columns: dict[str, list[object]] = {"tuner": np.repeat(tuners, len(spent)).tolist()}
    columns["spent"] = np.tile(spent, len(tuners)).tolist()
    for name, values in (("regret", regrets), ("rank", ranks)):
        columns[name] = values.mean(axis=1).ravel().tolist()
        number = values.shape[1]
        error = values.std(axis=1, ddof=1).ravel() / np.sqrt(number) if number > 1 else [None] * regrets[:, 0].size
        columns[f"{name}/standard_error"] = list(error)
    return pa.table(columns)
