"""Defines the section `[tuning]` of an experiment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from optuna.study import StudyDirection
from pydantic import Field

from raysim import Experiment, ExperimentError, Section
from tuning import pruners, samplers, space
from tuning.budget import StudyBudget, Unit
from tuning.generations import EvolutionSection
from tuning.objective import Objective
from tuning.pruners import NoPruner, Pruner
from tuning.samplers import Given, Grid, Sampler, Tpe
from tuning.space import Space

BATCH = 64
"""Trials under way at a time if proposals come in batches: enough to train in lockstep."""

Studied = Annotated[int, Field(ge=1, le=100_000)]
"""Runs of a study."""

TRIALS, MOST_TRIALS = 50, 1_000
"""Default number of trials of an infinite space; with a budget, which ends most studies before."""


class TuningSection(Section):
    """The space of a study, and its protocol."""

    space: dict[str, Any] = Field(
        max_length=1_000, description="Dotted keys of the experiment, and their values (tuning/space.py)."
    )
    sampler: Sampler | None = Field(
        None, description='Proposes configurations. Absent: "grid" where every key has a list, else "tpe".'
    )
    pruner: Pruner = Field(NoPruner(), description="Stops unpromising trials early.")
    trials: Studied | None = Field(
        None, description="Number of configurations. Absent: the whole grid, else 50, or with `budget` at most 1,000."
    )
    budget: StudyBudget | None = Field(None, description="Work of all trials, after which none begins.")
    seeds: Studied = Field(
        1,
        description=(
            "Runs of each configuration, with `seed`, `seed + 1`, ...: cohorts are paired. The experiment's `trials` "
            "has no part in a study."
        ),
    )
    vary: tuple[Literal["data", "model", "cohort"], ...] = Field(
        ("model", "cohort"),
        max_length=3,
        description=(
            "What varies with the seeds beside the clients' draws. Data do not by default: if a source has no "
            "test set, another seed's training examples would be among the test examples."
        ),
    )
    concurrent: Studied | Literal["auto"] = Field(
        "auto", description='Trials at a time; "auto": up to 64 where proposals ignore results, else one per worker.'
    )
    objective: Objective = Field(Objective(), description="The value that is optimised.")
    cost: Unit | None = Field(
        None,
        description="Second objective, to be small: what the runs of a trial use up. Absent: one objective.",
        examples=["bytes"],
    )
    laplace: float = Field(
        0.0,
        ge=0,
        le=1e6,
        description="Scale of the Laplace noise of every score that the study sees, as for private evaluation.",
    )
    evolution: EvolutionSection | None = Field(
        None, description="Members of `raysim evolve`. Absent: the defaults of its keys."
    )
    holdout: float = Field(
        0.2,
        gt=0,
        lt=1,
        description="Share of the training clients held out for validation, unless `[data]` has some already.",
    )
    storage: Annotated[str, Field(min_length=1, max_length=4_096)] | None = Field(
        None, description='"journal:PATH", or a URL for Optuna. Absent: SQLite in the study\'s folder.'
    )
    final: int = Field(
        2,
        ge=0,
        le=2,
        description="Number of best configurations trained on all training clients and scored on the test split.",
    )

    record_test: bool = Field(
        False,
        description=(
            "Evaluate every trial on the test split, too. The study does not look at it; `raysim best` can choose by "
            "it."
        ),
    )

    def parsed_space(self) -> Space:
        """Return the parsed space."""
        return space.parse(self.space)

    def chosen_sampler(self) -> Sampler:
        """Return the sampler, or the one that suits the space."""
        if self.sampler is not None:
            return self.sampler
        return Tpe() if self.parsed_space().grid is None else Grid()

    @property
    def directions(self) -> tuple[StudyDirection, ...]:
        """Return the direction of each objective."""
        first = StudyDirection.MAXIMIZE if self.objective.is_maximised else StudyDirection.MINIMIZE
        return (first,) if self.cost is None else (first, StudyDirection.MINIMIZE)

    def values_of(self, value: float | None, spent: Mapping[str, float]) -> list[float] | None:
        """Return a trial's value of each objective, as Optuna is told; `cost_of_trial`: what it has used up."""
        if value is None:
            return None
        return [value] if self.cost is None else [value, spent[self.cost]]

    def at_a_time(self, workers: int) -> int:
        """Return the number of trials under way at once with this number of workers."""
        if self.concurrent != "auto":
            return self.concurrent
        return BATCH if samplers.asks_in_batches(self.chosen_sampler()) else max(1, workers)

    def num_trials(self) -> int:
        """Return the number of trials of the whole study."""
        size = self.parsed_space().size
        if isinstance(self.sampler, Given):
            size = len(self.sampler.configurations)
        if isinstance(self.chosen_sampler(), Grid | Given) and size is not None:
            return min(size, self.trials or size)
        return self.trials or (TRIALS if self.budget is None else MOST_TRIALS)


def section_of(experiment: Experiment) -> TuningSection:
    """Return the experiment's `[tuning]`, checked against the rest of it.

    Raises:
        ExperimentError: the section is missing, or a key or value does not fit.
    """
    if experiment.tuning is None:
        raise ExperimentError(
            "The experiment has no [tuning] section, so there is nothing to tune. The least is a space, such as "
            "[tuning.space] with client.optimizer.lr = { grid = [0.01, 0.1, 1.0] }."
        )
    return checked_section(experiment.tuning, experiment)


def checked_section(table: Mapping[str, Any], experiment: Experiment) -> TuningSection:
    """Return `[tuning]` from a mapping, checked against the rest of the experiment; see `section_of`."""
    section = TuningSection.checked(table, at="tuning")
    read = section.parsed_space()
    space.check(read, experiment)
    samplers.check(section.chosen_sampler(), read)
    rounds, every = experiment.rounds, experiment.evaluation.every
    pruners.check(section.pruner, section.seeds, read.largest("rounds", rounds), every)
    pruners.check_cohorts(section.pruner, read, experiment)
    units = {
        "tuning.budget.simulated_s": None if section.budget is None else section.budget.unit,
        "tuning.cost": section.cost,
    }
    for key, unit in units.items():
        if unit == "simulated_s" and experiment.systems is None:
            raise ExperimentError(
                f"{key} counts simulated seconds, but without [systems] rounds have none: add it, or count "
                f"client_updates."
            )
    if section.cost is not None:
        samplers.check_two_objectives(section.chosen_sampler())
        if not isinstance(section.pruner, NoPruner):
            raise ExperimentError(
                f"tuning.cost: with two objectives no trial is worse than another by one figure, so "
                f"tuning.pruner.name = {section.pruner.name!r} is not defined: remove one of the two."
            )
    objective = section.objective
    if section.laplace and objective.has_target:
        raise ExperimentError(
            "tuning.laplace is noise of scores, but rounds_to_target is not a score: take another objective, or leave "
            "laplace out."
        )
    if objective.has_target and "rounds" in read.dimensions:
        raise ExperimentError(
            "tuning.space.rounds: a run that misses the target of rounds_to_target is measured by its number of rounds,"
            " so trials with other numbers cannot be compared: take the largest one as rounds, and remove the key."
        )
    _check_window(objective, read.largest("rounds", rounds))
    evaluated = {index for index in range(rounds) if (index + 1) % every == 0 or index + 1 == rounds}
    known = range(rounds) if objective.name == "train_loss" else evaluated
    if not any(index in known for index in objective.rounds(rounds)):
        chosen = objective.rounds(rounds)
        raise ExperimentError(
            f"tuning.objective: none of rounds {chosen.start} to {chosen.stop - 1} is evaluated: there are "
            f"rounds 0 to {rounds - 1}, and evaluation.every = {every}. Choose others, or evaluate more often."
        )
    return section


def _check_window(objective: Objective, rounds: int) -> None:
    """Refuse rounds of the mean that no run of at most so many rounds has: it would be one of fewer than are said."""
    if objective.window is not None and objective.window[1] >= rounds:
        raise ExperimentError(
            f"tuning.objective.window must end with one of the rounds, 0 to {rounds - 1}, but got "
            f"{list(objective.window)}."
        )
    if objective.last is not None and objective.last > rounds:
        raise ExperimentError(
            f"tuning.objective.last must be at most the number of rounds, {rounds}, but got {objective.last}."
        )
