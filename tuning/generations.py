"""Defines population-based training: members that train for some rounds, then the worst copy the best and change rates.

Source: Jaderberg et al. (2017): truncation selection, and rates that are multiplied or divided by a factor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import Field

from raysim import Experiment, ExperimentError, Section
from raysim.config.values import Count
from raysim.config.whole_part import whole_part
from raysim.experiment.differences import OF_THE_START
from tuning.dimension import Dimension, Listed
from tuning.errors import StudyError
from tuning.objective import Objective
from tuning.space import Space


class EvolutionSection(Section):
    """Members of `raysim evolve`: runs whose rates change as they train."""

    members: int = Field(8, ge=2, le=10_000, description="Runs that train at a time.")
    every: Count | None = Field(None, description="Rounds of a generation. Absent: `evaluation.every`.")
    share: float = Field(0.25, gt=0, le=0.5, description="Share of the members that are copied, and that copy.")
    factor: float = Field(1.25, gt=1, le=1e6, description="A copied number is multiplied or divided by it.")


@dataclass(frozen=True)
class Descendant:
    """A run of a generation. values: by dotted key. parent: the member before from which it goes on."""

    values: Mapping[str, Any]
    parent: int | None = None


def check(section: EvolutionSection, space: Space, objective: Objective, seeds: int, experiment: Experiment) -> None:
    """Raise ExperimentError if members could not be compared after every generation, or be changed."""
    for key, dimension in space.dimensions.items():
        _check_key(key, dimension)
    if seeds != 1:
        raise ExperimentError(
            f"tuning.seeds: a member of raysim evolve is one run, but got {seeds}: take more members."
        )
    if objective.has_target or objective.window is not None:
        raise ExperimentError(
            "tuning.objective: raysim evolve compares members after every generation, so rounds_to_target and window "
            "are not defined: take a figure, or the mean of its last rounds."
        )
    _check_equally_long(experiment)
    every, evaluated = section.every or experiment.evaluation.every, experiment.evaluation.every
    if every >= experiment.rounds:
        raise ExperimentError(
            f"A generation of raysim evolve is shorter than the run, so that rates change as it trains, but got "
            f"{'tuning.evolution' if section.every else 'evaluation'}.every = {every} and rounds = "
            f"{experiment.rounds}: lower it."
        )
    if every % evaluated:
        raise ExperimentError(
            f"tuning.evolution.every must be a multiple of evaluation.every = {evaluated}, so that members are "
            f"evaluated when they are compared, but got {every}."
        )


def _check_key(key: str, dimension: Dimension) -> None:
    """Raise ExperimentError if a member that goes on cannot take another value of the key."""
    if key == "rounds":
        raise ExperimentError(
            "tuning.space.rounds: the members of raysim evolve train equally long, so this key changes none of "
            "them: remove it."
        )
    if key.startswith("data."):
        raise ExperimentError(
            f"tuning.space.{key}: a member of raysim evolve goes on from the state of another one, which would "
            f"have trained on its validation clients where their data differ: remove the key, or take raysim tune."
        )
    if key in OF_THE_START:
        raise ExperimentError(
            f"tuning.space.{key}: it says how a run begins, so it changes no member of raysim evolve that goes on: "
            f"remove the key, or take raysim tune."
        )
    if isinstance(dimension, Listed) and not dimension.ordered:
        raise ExperimentError(
            f"tuning.space.{key}: raysim evolve changes numbers while a run goes on, but choices have no order: "
            f"write log, uniform, int or grid."
        )


def _check_equally_long(experiment: Experiment) -> None:
    """Raise ExperimentError if some members could end before the others."""
    if experiment.stop is not None:
        raise ExperimentError("The members of raysim evolve train equally long, but [stop] would end some: remove it.")
    private = experiment.server.privacy
    if private is not None and private.epsilon is not None and private.noise_multiplier is not None:
        raise ExperimentError(
            "The members of raysim evolve train to the last round, but server.privacy.epsilon beside noise_multiplier "
            "may end them before: remove one of the two. Without noise_multiplier all rounds keep to the budget."
        )


def ends(section: EvolutionSection, experiment: Experiment) -> tuple[int, ...]:
    """Return after how many rounds each generation ends."""
    every = section.every or experiment.evaluation.every
    return (*range(every, experiment.rounds, every), experiment.rounds)


def first(section: EvolutionSection, space: Space, seed: int) -> list[Descendant]:
    """Return the members of the first generation, whose values are drawn from the space."""
    return [Descendant(_drawn(space, _random(seed, 0, member))) for member in range(section.members)]


def next_generation(
    section: EvolutionSection,
    space: Space,
    members: Sequence[Descendant],
    scores: Sequence[float | None],
    seed: int,
    generation: int,
) -> list[Descendant]:
    """Return the members of a generation, by the scores of those before: the worst go on from one of the best.

    Args:
        scores: large is good; None: diverged, so it goes on from another one.

    Raises:
        StudyError: all have diverged.
    """
    known = [score for score in scores if score is not None]
    if not known:
        raise StudyError("All members have diverged. Try a space with smaller learning rates, or clip (server.clip).")
    order = sorted(range(len(scores)), key=lambda m: (-math.inf if (s := scores[m]) is None else s, -m), reverse=True)
    number = max(1, whole_part(section.share * len(scores)))
    best = order[: min(number, len(known))]
    worst = set(order[min(len(known), len(order) - number) :]) - set(best)
    return [
        _copy(section, space, members, best, _random(seed, generation, member))
        if member in worst
        else Descendant(own.values, member)
        for member, own in enumerate(members)
    ]


def lineage(generations: Sequence[Sequence[Descendant]], member: int) -> list[int]:
    """Return which member of each generation the last one's `member` comes from, itself last.

    >>> lineage([[Descendant({}), Descendant({})], [Descendant({}, 1), Descendant({}, 1)]], 0)
    [1, 0]
    """
    found = [member]
    for members in reversed(generations[1:]):
        parent = members[found[0]].parent
        assert parent is not None
        found.insert(0, parent)
    return found


def changed(dimension: Dimension, value: Any, factor: float) -> Any:
    """Return a number that is multiplied by the factor, within its ends; of a list the next one in that direction.

    >>> from tuning.dimension import Range
    >>> changed(Range("log", 0.01, 1), 0.9, 1.25), changed(Range("int", 1, 9), 2, 0.8), changed(
    ...     Listed((0.1, 1.0, 0.01), ordered=True), 0.1, 1.25
    ... )
    (1, 1, 1.0)
    """
    up = factor > 1
    if isinstance(dimension, Listed):
        values = sorted(dimension.values)
        place = values.index(value) + (1 if up else -1)
        return values[min(max(place, 0), len(values) - 1)]
    moved = value * factor
    if dimension.kind == "int":
        moved = max(round(moved), int(value) + 1) if up else min(round(moved), int(value) - 1)
    return min(max(moved, dimension.low), dimension.high)


def _copy(
    section: EvolutionSection,
    space: Space,
    members: Sequence[Descendant],
    best: Sequence[int],
    random: np.random.Generator,
) -> Descendant:
    parent = best[int(random.integers(len(best)))]
    ups = random.integers(2, size=len(space.dimensions))
    values = members[parent].values
    moved: Iterable[tuple[str, Any]] = (
        (key, changed(dimension, values[key], section.factor if up else 1 / section.factor))
        for (key, dimension), up in zip(space.dimensions.items(), ups, strict=True)
    )
    return Descendant(dict(moved), parent)


def _drawn(space: Space, random: np.random.Generator) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, dimension in space.dimensions.items():
        if isinstance(dimension, Listed):
            found[key] = dimension.values[int(random.integers(len(dimension.values)))]
        elif dimension.kind == "int":
            found[key] = int(random.integers(int(dimension.low), int(dimension.high) + 1))
        elif dimension.kind == "log":
            found[key] = math.exp(random.uniform(math.log(dimension.low), math.log(dimension.high)))
        else:
            found[key] = float(random.uniform(dimension.low, dimension.high))
    return found


def _random(seed: int, generation: int, member: int) -> np.random.Generator:
    return np.random.default_rng([seed % 2**63, generation, member])
