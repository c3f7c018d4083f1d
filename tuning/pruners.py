"""Defines the pruners, which stop trials early: Optuna's, by name. They decide after every evaluated round or seed.

Cohort sizes can be rungs, too: a trial is then run with smaller cohorts first, and a pruner of raysim's decides.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Annotated, Literal

import optuna
from optuna.pruners import BasePruner, MedianPruner, NopPruner, WilcoxonPruner
from pydantic import Field

from raysim import Experiment, ExperimentError, Section
from raysim.config.values import Count, Whole
from tuning.rungs import BestOfBracket, BestOfCohorts, BestOfRung
from tuning.space import COHORT_SIZE, Space


class NoPruner(Section):
    """Every trial is run to its end, unless it diverges."""

    name: Literal["none"] = "none"


class MedianStop(Section):
    """Stop a trial that is worse than the median of finished trials at the same round."""

    name: Literal["median"] = "median"
    startup: Whole = Field(5, description="Number of finished trials before any is stopped.")
    warmup_rounds: Whole = Field(0, description="Rounds of a trial before the first decision on it.")


class Halving(Section):
    """Successive halving, asynchronous: of the trials that reach min_rounds * factor^k, the best 1 / factor go on.

    Source: Wang et al. (2022) have two fidelities of a trial: its rounds, and the clients of a round.
    """

    name: Literal["halving"] = "halving"
    cohorts: tuple[Count, ...] = Field(
        (),
        max_length=20,
        description=(
            "Sizes of smaller cohorts, the smallest first, with which every trial is run before it is run with "
            "`cohort.size`: of the trials with each, the best 1 / factor go on. They take the place of min_rounds."
        ),
    )
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


def cohorts(pruner: Pruner) -> tuple[int, ...]:
    """Return the sizes of the cohorts with which a trial is run first."""
    return pruner.cohorts if isinstance(pruner, Halving) else ()


def check(pruner: Pruner, seeds: int, rounds: int, every: int) -> None:
    """Raise ExperimentError if the pruner could never stop a trial of so many seeds, and at most so many rounds."""
    if isinstance(pruner, Wilcoxon) and 2.0 ** -(seeds - 1) >= pruner.p:
        # n pairs of one sign have the one-sided p-value 2^-n; after the last seed there is nothing to stop.
        raise ExperimentError(
            f"tuning.pruner: wilcoxon with p = {pruner.p:g} cannot stop a trial of {seeds} seeds, because before the "
            f"last of n the p-value is at least 2^-(n-1) = {2.0 ** -(seeds - 1):g}: raise tuning.seeds or p."
        )
    if isinstance(pruner, NoPruner | Wilcoxon) or cohorts(pruner):
        return
    if every >= rounds:
        raise ExperimentError(
            f"tuning.pruner: {pruner.name} looks at evaluated rounds, but with evaluation.every = {every} only the "
            f"last of {rounds} rounds is one: lower it."
        )
    key = "warmup_rounds" if isinstance(pruner, MedianStop) else "min_rounds"
    first, last = getattr(pruner, key) or every, (rounds - 1) // every * every
    if first > last:
        raise ExperimentError(
            f"tuning.pruner: {pruner.name} with {key} = {first} cannot stop a trial of {rounds} rounds, of which the "
            f"last evaluation before the end is after {last}: lower it."
        )


def too_few_trials(pruner: Pruner, trials: int) -> str | None:
    """Return why the pruner stops none of so many trials; None if it may stop one."""
    if isinstance(pruner, MedianStop) and pruner.startup >= trials:
        return f"startup = {pruner.startup} trials are finished before any is stopped, of {trials} in all"
    return None


def check_cohorts(pruner: Pruner, space: Space, experiment: Experiment) -> None:
    """Raise ExperimentError if the pruner has cohorts that are not smaller ones of every trial."""
    if not isinstance(pruner, Halving) or not pruner.cohorts:
        return
    sizes, whole = pruner.cohorts, experiment.cohort.size
    if pruner.min_rounds is not None:
        raise ExperimentError("tuning.pruner: cohorts and min_rounds both say where halving decides: give one of them.")
    if whole is None or {"cohort", COHORT_SIZE} & space.dimensions.keys():
        raise ExperimentError(
            f"tuning.pruner.cohorts are smaller than cohort.size, but that is "
            f"{'absent' if whole is None else 'a key of tuning.space'}: remove cohorts."
        )
    if list(sizes) != sorted(set(sizes)) or sizes[-1] >= whole:
        raise ExperimentError(
            f"tuning.pruner.cohorts must grow, and be smaller than cohort.size = {whole}, but got {list(sizes)}."
        )
    for size in sizes:
        try:
            experiment.changed({COHORT_SIZE: size})
        except ExperimentError as error:
            raise ExperimentError(f"tuning.pruner.cohorts with {size} clients: {error}") from None


def looks_at_seeds(pruner: Pruner) -> bool:
    """Return whether the pruner compares seeds, not rounds."""
    return isinstance(pruner, Wilcoxon)


def deciding(pruner: Pruner, steps: Sequence[int], every: int) -> list[int]:
    """Return the steps at which the pruner decides, of those of a trial in order: at the others it lets it go on.

    >>> deciding(Halving(min_rounds=2), [1, 3, 5, 6, 7, 20], every=1)
    [3, 6, 20]
    """
    if not isinstance(pruner, Halving | Hyperband) or cohorts(pruner):
        return list(steps)
    found, rung = list[int](), pruner.min_rounds or every
    for step in steps:
        if step >= rung:
            found.append(step)
        while rung <= step:
            rung *= pruner.factor
    return found


def make(pruner: Pruner, rounds: int, every: int) -> BasePruner:
    """Return Optuna's pruner for runs of `rounds` rounds, evaluated every `every` rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        match pruner:
            case MedianStop():
                return MedianPruner(pruner.startup, pruner.warmup_rounds)
            case Halving() if pruner.cohorts:
                return BestOfCohorts(pruner.factor)
            case Halving():
                return BestOfRung(pruner.min_rounds or every, pruner.factor)
            case Hyperband():
                return BestOfBracket(pruner.min_rounds or every, rounds, pruner.factor)
            case Wilcoxon():
                return WilcoxonPruner(p_threshold=pruner.p)
        return NopPruner()
