"""Samples by CMA-ES, whose state is computed anew from the trials for each proposal.

Optuna's sampler keeps that state as a pickle in the storage, and runs what it finds there: a study from elsewhere could
bring code of its own. The proposals are the same but for last digits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution
from optuna.samplers import CmaEsSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

if TYPE_CHECKING:
    from cmaes import CMA

GENERATION = "cma:generation"
"""The attribute of a trial that says for which generation it was proposed."""


class CmaEs(CmaEsSampler):
    """Proposes by CMA-ES the keys that have a range of numbers, each mapped to 0..1; the first trial is random.

    A generation is told of those of its trials that ended first, as many as it needs, so what it was told stays.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed, warn_independent_sampling=False)
        self._own_seed = seed

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose values for the keys of the space."""
        ended = [each for each in study.get_trials(deepcopy=False) if each.state == TrialState.COMPLETE]
        if not search_space or not ended:
            return {}
        rng = np.random.RandomState(self._own_seed)
        if not any(each.system_attrs.get(GENERATION, 0) > 0 for each in ended):
            # Optuna's draws the seed of a new state first.
            rng.randint(1, 2**31 - 2)
        space = _SearchSpaceTransform(search_space, transform_step=True, transform_0_1=True)
        state = _state(space, int(rng.randint(1, 2**16)) + trial.number, ended, study.direction)
        study._storage.set_trial_system_attr(trial._trial_id, GENERATION, state.generation)
        return space.untransform(state.ask())


def _state(space: _SearchSpaceTransform, seed: int, ended: list[FrozenTrial], direction: StudyDirection) -> CMA:
    """Return the state after all whole generations; its next proposal draws by the seed."""
    import cmaes

    low, high = space.bounds.T
    width = high - low
    state = cmaes.CMA(
        mean=low + width / 2,
        sigma=float(width.min() / 6),
        bounds=space.bounds,
        seed=seed,
        n_max_resampling=10 * len(width),
    )
    sign = 1 if direction == StudyDirection.MINIMIZE else -1
    first = sorted(ended, key=lambda trial: (trial.datetime_complete, trial.number))
    while True:
        own = [trial for trial in first if trial.system_attrs.get(GENERATION) == state.generation]
        if len(own) < state.population_size:
            return state
        told = sorted(own[: state.population_size], key=lambda trial: trial.number)
        # A completed trial has a value.
        state.tell([(space.transform(trial.params), sign * float(trial.value or 0.0)) for trial in told])
