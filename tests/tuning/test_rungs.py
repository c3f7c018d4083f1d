"""Halving by rungs: Optuna's decisions, which do not change when a trial is asked about once more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import optuna
import pytest
from optuna.pruners import BasePruner, HyperbandPruner, SuccessiveHalvingPruner
from optuna.trial import TrialState

from tuning import pruners
from tuning.pruners import Halving, Hyperband
from tuning.rungs import BestOfBracket

Direction = Literal["minimize", "maximize"]


def stops(
    pruner: BasePruner, courses: Sequence[Sequence[float]], direction: Direction, asked: int = 1
) -> list[int | None]:
    """Steps at which trials were stopped, one trial after the other; None: it was not. `asked`: times at each step."""
    study = optuna.create_study(study_name="rungs", direction=direction, pruner=pruner)
    found = list[int | None]()
    for course in courses:
        trial = study.ask()
        stopped = None
        for step, value in enumerate(course, start=1):
            trial.report(value, step)
            answers = [trial.should_prune() for _ in range(asked if step < len(course) else 0)]
            assert len(set(answers)) <= 1
            if any(answers):
                stopped = step
                break
        found.append(stopped)
        study.tell(trial, None if stopped else course[-1], TrialState.PRUNED if stopped else TrialState.COMPLETE)
    return found


@pytest.mark.parametrize("asked", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize("name", ["halving", "hyperband"])
def test_the_decisions_are_optunas(name: str, factor: int, direction: Direction, asked: int) -> None:
    rng = np.random.default_rng(factor)
    # Coarse values, so that some are equal; NaN once.
    courses = rng.integers(0, 12, (40, 16)).astype(float)
    courses[17, 2] = np.nan
    made = Halving(factor=factor) if name == "halving" else Hyperband(factor=factor)
    ours = stops(pruners.make(made, 16, 1), courses.tolist(), direction, asked)
    of_optuna = SuccessiveHalvingPruner(1, factor) if name == "halving" else HyperbandPruner(1, 16, factor)
    assert ours == stops(of_optuna, courses.tolist(), direction)
    assert 10 < sum(step is not None for step in ours) < 40


def test_a_step_of_several_rungs_decides_once() -> None:
    # The first step is 4: with factor 2 that is Optuna's rungs 1, 2 and 4, so the third of four would have to be the
    # best of two, and of one.
    study = optuna.create_study(direction="minimize", pruner=pruners.make(Halving(min_rounds=1, factor=2), 16, 4))
    found = []
    for value in (1.0, 2.0, 3.0, 1.5):
        trial = study.ask()
        trial.report(value, 4)
        found.append(trial.should_prune())
    assert found == [False, True, True, False]


def test_brackets_are_known_before_the_first_decision() -> None:
    study = optuna.create_study(study_name="rungs")
    pruner = pruners.make(Hyperband(factor=2), 16, 1)
    assert isinstance(pruner, BestOfBracket)
    for _ in range(30):
        study.ask()
    assert len({pruner.bracket(study, trial) for trial in study.trials}) > 1


def test_a_trial_that_diverged_reached_only_what_it_trained_to() -> None:
    study = optuna.create_study(direction="minimize", pruner=pruners.make(Halving(factor=2), 16, 1))
    for last in (1, 1, 1):
        trial = study.ask()
        trial.report(1.0, last)
        trial.report(float("inf"), last + 1)
        trial.set_user_attr("outcome", "diverged")
        study.tell(trial, state=TrialState.PRUNED)
    for value, expected in ((2.0, False), (3.0, True)):
        trial = study.ask()
        trial.report(1.0, 1)
        trial.report(value, 2)
        # Two trials reached rung 2, so one of them goes on; with those that diverged there would be five, and two.
        assert trial.should_prune() is expected
