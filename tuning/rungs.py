"""Prunes by rungs: of the trials that reach one, the best 1 / factor go on.

The decisions depend on the stored steps only. Optuna's pruners of these names also store that they have decided, before
they answer: a process that is killed in between would decide otherwise when it goes on. With `min_rounds` at least
`evaluation.every` the decisions are Optuna's. Below it, one step is several of Optuna's rungs, and only one here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import optuna
from optuna.pruners import BasePruner, HyperbandPruner
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from tuning.kept_trial import DIVERGED


class BestOfCohorts(BasePruner):
    """Stops a trial that is not among the best 1 / factor of those that were run with a cohort size, one at least."""

    def __init__(self, factor: int) -> None:
        self._factor = factor

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Decide on the trial's last step."""
        step, own = max(trial.intermediate_values.items())
        reported = [other.intermediate_values for other in study.get_trials(deepcopy=False)]
        return _is_behind(study, own, [each[step] for each in reported if step in each], self._factor)


class BestOfRung(BasePruner):
    """Successive halving, asynchronous: rung k is the first step of at least first * factor^k.

    Source: Optuna's `SuccessiveHalvingPruner`, which names the paper.
    """

    def __init__(self, first: int, factor: int) -> None:
        self._first, self._factor = first, factor

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Decide on the trial's last step."""
        return _stops(study, trial, study.get_trials(deepcopy=False), self._first, self._factor)


class BestOfBracket(HyperbandPruner):
    """Hyperband: bracket b begins at first * factor^b; a trial's bracket follows from its number and the study's name.

    Brackets are Optuna's, whose TPE proposes from the trials of one bracket where the pruner is of that class.
    """

    def __init__(self, first: int, rounds: int, factor: int) -> None:
        super().__init__(first, rounds, factor)
        self._first, self._factor = first, factor

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Decide on the trial's last step."""
        bracket = self.bracket(study, trial)
        others = [each for each in study.get_trials(deepcopy=False) if self.bracket(study, each) == bracket]
        return _stops(study, trial, others, self._first * self._factor**bracket, self._factor)

    def bracket(self, study: optuna.Study, trial: FrozenTrial) -> int:
        """Return the number of a trial's bracket."""
        return self._get_bracket_id(study, trial)

    def _get_bracket_id(self, study: optuna.Study, trial: FrozenTrial) -> int:
        if not self._pruners:
            # Optuna does this at the first decision: a process that goes on with a study would sample before it.
            self._try_initialization(study)
        return super()._get_bracket_id(study, trial)


def _stops(study: optuna.Study, trial: FrozenTrial, trials: Iterable[FrozenTrial], first: int, factor: int) -> bool:
    """Whether the trial's last step is a rung, and its value there is not among the best of those that reached it."""
    *earlier, step = sorted(trial.intermediate_values)
    if step < first:
        return False
    rung = first
    while rung * factor <= step:
        rung *= factor
    if earlier and earlier[-1] >= rung:
        return False
    reached = [value for each in trials if (value := _value_at(each, rung)) is not None]
    return _is_behind(study, trial.intermediate_values[step], reached, factor)


def _value_at(trial: FrozenTrial, rung: int) -> float | None:
    """Return a trial's value at a rung; None if it did not reach it."""
    steps = sorted(trial.intermediate_values)
    if trial.user_attrs.get("outcome") == DIVERGED:
        # Its last step stands for the divergence.
        steps = steps[:-1]
    return next((trial.intermediate_values[step] for step in steps if step >= rung), None)


def _is_behind(study: optuna.Study, own: float, values: Iterable[float], factor: int) -> bool:
    """Whether a value is not among the best 1 / factor of all, at least one. NaN is not, and does not count."""
    if math.isnan(own):
        return True
    sign = -1 if study.direction == StudyDirection.MAXIMIZE else 1
    signed = [sign * value for value in values if not math.isnan(value)]
    return sum(value < sign * own for value in signed) >= max(1, len(signed) // factor)
