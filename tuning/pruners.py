"""Defines the pruners, which stop trials early: Optuna's, by name. They decide after every evaluated round or seed."""

from __future__ import annotations

import warnings
from typing import Annotated, Literal

import optuna
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner, WilcoxonPruner
from pydantic import Field

from raysim import ExperimentError, Section
from raysim.config.values import Count, Whole


class NoPruner(Section):
    """Every trial is run to its end, unless it diverges."""

    name: Literal["none"] = "none"


class MedianStop(Section):
    """Stop a trial that is worse than the median of finished trials at the same round."""

    name: Literal["median"] = "median"
    startup: Whole = Field(5, description="Number of finished trials before any is stopped.")
    warmup_rounds: Whole = Field(0, description="First rounds in which no trial is stopped.")


class Halving(Section):
    """Successive halving, asynchronous: of the trials that reach min_rounds * factor^k, the best 1 / factor go on."""

    name: Literal["halving"] = "halving"
    min_rounds: Count | None = Field(None, description="Rounds before the first decision. Absent: `evaluation.every`.")
    factor: int = Field(3, ge=2, le=1_000_000, description="The best 1 / factor of the trials go on.")


class Hyperband(Section):
    """Successive halving in several brackets, which begin at different rounds."""

    name: Literal["hyperband"] = "hyperband"
    min_rounds: Count | None = Field(
        None, description="Rounds before the first decision of the first bracket. Absent: `evaluation.every`."
    )
    factor: int = Field(3, ge=2, le=1_000_000, description="The best 1 / factor of the trials go on.")


class Wilcoxon(Section):
    """Seeds are run one after the other; stop a trial if the best trial is better, seed by seed."""

    name: Literal["wilcoxon"] = "wilcoxon"
    p: float = Field(0.1, gt=0, lt=1, description="Level of the signed-rank test.")


Pruner = Annotated[NoPruner | MedianStop | Halving | Hyperband | Wilcoxon, Field(discriminator="name")]


def check(pruner: Pruner, seeds: int, rounds: int, every: int) -> None:
    """Raise ExperimentError if the pruner could never stop a trial."""
    if isinstance(pruner, Wilcoxon) and 2.0 ** -(seeds - 1) >= pruner.p:
        # n pairs of one sign have the one-sided p-value 2^-n; after the last seed there is nothing to stop.
        raise ExperimentError(
            f"tuning.pruner: wilcoxon with p = {pruner.p:g} cannot stop a trial of {seeds} seeds, because before the "
            f"last of n the p-value is at least 2^-(n-1) = {2.0 ** -(seeds - 1):g}: raise tuning.seeds or p."
        )
    if not isinstance(pruner, NoPruner | Wilcoxon) and every >= rounds:
        raise ExperimentError(
            f"tuning.pruner: {pruner.name} looks at evaluated rounds, but with evaluation.every = {every} only the "
            f"last of {rounds} rounds is one: lower it."
        )


def looks_at_seeds(pruner: Pruner) -> bool:
    """Return whether the pruner compares seeds, not rounds."""
    return isinstance(pruner, Wilcoxon)


def make(pruner: Pruner, rounds: int, every: int) -> BasePruner:
    """Return Optuna's pruner for runs of `rounds` rounds, evaluated every `every` rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match pruner:
            case MedianStop():
                return MedianPruner(pruner.startup, pruner.warmup_rounds)
            case Halving():
                return SuccessiveHalvingPruner(pruner.min_rounds or every, pruner.factor)
            case Hyperband():
                return HyperbandPruner(pruner.min_rounds or every, rounds, pruner.factor)
            case Wilcoxon():
                return WilcoxonPruner(p_threshold=pruner.p)
        return NopPruner()
