"""Plays studies on a table: a tuner asks for configurations, and has their recorded courses as answers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.trial import FrozenTrial, Trial, TrialState

from tuning import pruners, samplers
from tuning.kept_trial import DIVERGED, FAILED, PRUNED
from tuning.noise import laplace
from tuning.pruners import NoPruner
from tuning.section import TuningSection
from tuning.space import COHORT_SIZE
from tuning.table.course import Course, staged
from tuning.table.record import PublishedTable, place_of

PLACE = "configuration"
"""Attribute of a trial: its place in the table."""


def play(
    table: PublishedTable, courses: Sequence[Course], tuning: TuningSection, seed: int, name: str
) -> list[FrozenTrial]:
    """Return the trials of one study, in order, with the attributes that a ledger gives them.

    The trials are those of the same study with training, one trial at a time, to the last bit.

    Args:
        courses: of the table's configurations, by the study's objective.
        tuning: the study's section; its space is a part of the table's.
        seed: of its sampler, unless the section has one. name: of the study, which decides the brackets of hyperband.
    """
    rounds, every = table.experiment.rounds, table.experiment.evaluation.every
    study = optuna.create_study(
        study_name=name,
        directions=tuning.directions,
        pruner=pruners.make(tuning.pruner, rounds, every),
    )
    smaller = pruners.cohorts(tuning.pruner)
    sizes = (*smaller, table.experiment.cohort.size) if smaller else ()
    attributes = list[dict[str, Any]]()
    space, used = tuning.parsed_space(), list[Mapping[str, float]]()
    for slot in range(tuning.num_trials()):
        if tuning.budget is not None and not tuning.budget.room(used, 0):
            break
        study.sampler = samplers.make(tuning.chosen_sampler(), space, seed, slot)
        trial = study.ask()
        space.suggest(trial)
        values = space.values(trial.params)
        places = [place_of(table.space, {**values, COHORT_SIZE: size}) for size in sizes] if sizes else []
        place = places[-1] if sizes else place_of(table.space, values)
        course = staged([courses[each] for each in places], sizes) if sizes else courses[place]
        outcome, facts, state, value = _carried_out(trial, course, tuning, every, [seed, slot])
        attributes.append({"slot": slot, "outcome": outcome, "facts": facts, PLACE: place})
        study.tell(trial, tuning.values_of(value, facts["spent"]), state)
        used.append(facts["spent"])
    trials = study.get_trials(deepcopy=False)
    # Now, because Optuna copies what a trial has with every call.
    for each, known in zip(trials, attributes, strict=True):
        each.user_attrs.update(known)
    return trials


def _carried_out(
    trial: Trial, course: Course, tuning: TuningSection, every: int, address: Sequence[int]
) -> tuple[str, Mapping[str, Any], TrialState, float | None]:
    """Report a trial's steps; return its outcome, its facts, and the state and the value to tell.

    Args:
        every: rounds between evaluations. address: of the trial's noise.
    """
    last = max(course.steps, default=0)
    if not isinstance(tuning.pruner, NoPruner):
        for step in pruners.deciding(tuning.pruner, list(course.steps), every):
            trial.report(course.steps[step] + laplace(tuning.laplace, [*address, step + 1]), step)
            if (step < last or course.value is None) and trial.should_prune():
                return PRUNED, course.cut(step), TrialState.PRUNED, None
    if course.outcome == FAILED:
        return FAILED, course.facts, TrialState.FAIL, None
    if course.outcome != DIVERGED:
        assert course.value is not None
        value = course.value + laplace(tuning.laplace, [*address, 0])
        return course.outcome, course.facts, TrialState.COMPLETE, value
    if samplers.learns_from_finished_only(tuning.chosen_sampler()):
        return DIVERGED, course.facts, TrialState.COMPLETE, tuning.objective.worst
    if tuning.cost is None:
        trial.report(tuning.objective.worst, last + 1)
    return DIVERGED, course.facts, TrialState.PRUNED, None
