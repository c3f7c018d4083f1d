"""Who proposes configurations: Optuna's samplers, by name.

A sampler is made for every trial, seeded by the study's seed and the trial's place in it. So a proposal does not depend
on which process asks, or on how often the study was interrupted, but only on what the storage knows by then.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Annotated, Literal

import numpy as np
import optuna
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState
from pydantic import Field, PositiveInt

from raysim import ExperimentError, Section
from tuning.dimension import Listed
from tuning.space import Space


class Grid(Section):
    """Every configuration once, in a random order."""

    name: Literal["grid"] = "grid"
    seed: int | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Random(Section):
    """Every configuration drawn independently."""

    name: Literal["random"] = "random"
    seed: int | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Tpe(Section):
    """Tree-structured Parzen estimators."""

    name: Literal["tpe"] = "tpe"
    startup: PositiveInt = Field(10, description="Number of random configurations first.")
    seed: int | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Gp(Section):
    """A Gaussian process and its expected improvement."""

    name: Literal["gp"] = "gp"
    startup: PositiveInt = Field(10, description="Number of random configurations first.")
    seed: int | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


class Cmaes(Section):
    """CMA-ES; for at least two keys with a range of numbers."""

    name: Literal["cmaes"] = "cmaes"
    seed: int | None = Field(None, description="Seed of the draws. Absent: the experiment's.")


Sampler = Annotated[Grid | Random | Tpe | Gp | Cmaes, Field(discriminator="name")]


class _GridUnderAsk(GridSampler):
    """Optuna's grid without its last act, which is to end the loop of `Study.optimize`: here there is none."""

    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        pass


def check(sampler: Sampler, space: Space) -> None:
    """Raise ExperimentError unless the sampler is defined on the space and its packages are there."""
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


def asks_in_batches(sampler: Sampler) -> bool:
    """Whether what it proposes does not depend on what other trials came to."""
    return isinstance(sampler, Grid | Random)


def learns_from_finished_only(sampler: Sampler) -> bool:
    """Whether it takes no notice of pruned trials."""
    return isinstance(sampler, Gp | Cmaes)


def make(sampler: Sampler, space: Space, seed: int, place: int) -> BaseSampler:
    """Optuna's sampler for the trial at this place of the study, 0 for the first; `seed` where it has none itself."""
    seed = seed if sampler.seed is None else sampler.seed
    own = int(np.random.SeedSequence([seed % 2**63, place]).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match sampler:
            case Grid():
                assert space.grid is not None
                # The order of the grid is the study's: all of its trials must see the same.
                return _GridUnderAsk(space.grid, seed=seed % 2**32)
            case Random():
                return RandomSampler(seed=own)
            case Tpe():
                return TPESampler(n_startup_trials=sampler.startup, seed=own, constant_liar=True)
            case Gp():
                return GPSampler(n_startup_trials=sampler.startup, seed=own)
            case Cmaes():
                return CmaEsSampler(seed=own, warn_independent_sampling=False)
