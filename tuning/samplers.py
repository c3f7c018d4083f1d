"""Defines the samplers, which propose configurations: Optuna's samplers, by name.

Every trial has a new sampler, seeded by the study's seed and the trial's place in it. So a proposal depends on neither
the process nor the interruptions of the study, but only on the trials in the storage at that time.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Annotated, Any, Literal

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState
from pydantic import Field

from raysim import ExperimentError, Section
from raysim.config.values import Count, Seed
from tuning.cma_es import CmaEs
from tuning.dimension import Listed
from tuning.gaussian_process import GaussianProcess
from tuning.space import MOST_LISTED, Space


class Grid(Section):
    """Every configuration once, in a random order."""

    name: Literal["grid"] = "grid"
    seed: Seed | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Random(Section):
    """Every configuration drawn independently."""

    name: Literal["random"] = "random"
    seed: Seed | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Tpe(Section):
    """Tree-structured Parzen estimators."""

    name: Literal["tpe"] = "tpe"
    startup: Count = Field(10, description="Number of random configurations first.")
    seed: Seed | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Gp(Section):
    """A Gaussian process and its expected improvement."""

    name: Literal["gp"] = "gp"
    startup: Count = Field(10, description="Number of random configurations first.")
    seed: Seed | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Cmaes(Section):
    """CMA-ES; for at least two keys with a range of numbers."""

    name: Literal["cmaes"] = "cmaes"
    seed: Seed | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Given(Section):
    """Configurations that are given, one after the other."""

    name: Literal["listed"] = "listed"
    configurations: tuple[Annotated[dict[str, Any], Field(max_length=1_000)], ...] = Field(
        min_length=1,
        max_length=MOST_LISTED,
        description="Dotted keys of the space and a value of each.",
        examples=[[{"client.optimizer.lr": 0.1}, {"client.optimizer.lr": 0.3}]],
    )


Sampler = Annotated[Grid | Random | Tpe | Gp | Cmaes | Given, Field(discriminator="name")]


class _GridUnderAsk(GridSampler):
    """Optuna's grid, which does not end the loop of `Study.optimize`: raysim has no such loop."""

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        pass


class _GivenUnderAsk(RandomSampler):
    """Proposes one configuration, in Optuna's terms."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        super().__init__()
        self._params = params

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Return the parameter's value."""
        return self._params[param_name]


def check(sampler: Sampler, space: Space) -> None:
    """Raise ExperimentError unless the sampler is defined on the space and its packages are installed."""
    if isinstance(sampler, Given):
        for place, values in enumerate(sampler.configurations):
            try:
                space.params(values)
            except ExperimentError as error:
                raise ExperimentError(f"tuning.sampler.configurations[{place}]: {error}") from None
    if isinstance(sampler, Grid) and space.size is not None and space.grid is None:
        raise ExperimentError(
            f"tuning.sampler: grid goes through at most {MOST_LISTED:,} configurations, but there are {space.size:,}: "
            f"list fewer values, or take random, tpe or gp."
        )
    if isinstance(sampler, Grid) and space.grid is None:
        endless = [key for key, d in space.dimensions.items() if not isinstance(d, Listed) and d.kind != "int"]
        raise ExperimentError(
            f"tuning.sampler: grid goes through lists, but {', '.join(endless)} has numbers without end between two: "
            f"write it as grid = [...], or take random, tpe, gp or cmaes."
        )
    if isinstance(sampler, Cmaes):
        numbers = [key for key, dimension in space.dimensions.items() if not isinstance(dimension, Listed)]
        if len(numbers) < 2:
            raise ExperimentError(
                f"tuning.sampler: cmaes needs at least two keys with log, uniform or int, but got {len(numbers)}: take "
                f"tpe or gp."
            )
        if find_spec("cmaes") is None:
            raise ExperimentError("tuning.sampler: cmaes needs the package of that name: pip install 'raysim[cmaes]'.")


def check_two_objectives(sampler: Sampler) -> None:
    """Raise ExperimentError if the sampler is not defined for two objectives."""
    if isinstance(sampler, Cmaes):
        raise ExperimentError("tuning.sampler: cmaes has one objective, and tuning.cost is a second: take tpe or gp.")


def asks_in_batches(sampler: Sampler) -> bool:
    """Return whether the proposals do not depend on the results of other trials."""
    return isinstance(sampler, Grid | Random | Given)


def learns_from_finished_only(sampler: Sampler) -> bool:
    """Return whether the sampler ignores pruned trials."""
    return isinstance(sampler, Gp | Cmaes)


def make(sampler: Sampler, space: Space, seed: int, place: int) -> BaseSampler:
    """Return Optuna's sampler for the trial at this place of the study, from 0; `seed` is the default seed."""
    seed = seed if isinstance(sampler, Given) or sampler.seed is None else sampler.seed
    trial_seed = int(np.random.SeedSequence([seed % 2**63, place]).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match sampler:
            case Grid():
                assert space.grid is not None
                # All trials of the study must have the same order of the grid.
                return _GridUnderAsk(space.grid, seed=seed % 2**32)
            case Given():
                return _GivenUnderAsk(space.params(sampler.configurations[place]))
            case Random():
                return RandomSampler(seed=trial_seed)
            case Tpe():
                return TPESampler(n_startup_trials=sampler.startup, seed=trial_seed, constant_liar=True)
            case Gp():
                return GaussianProcess(n_startup_trials=sampler.startup, seed=trial_seed)
            case Cmaes():
                return CmaEs(trial_seed)
