"""Uniform sampling without replacement: the prefix of one permutation addressed by (seed, round).

So cohorts are nested across sizes and equal across algorithms, and cost O(size), whatever the population.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from raysim import seeds
from raysim.cohort.sampler import Positions, Sampler, State
from raysim.config.section import Section


class UniformSampler(Section):
    """Every set of `cohort.size` clients is equally likely."""

    name: Literal["uniform"] = "uniform"


def prefix(seed: int, round_index: int, population: int, size: int) -> Positions:
    """The first `size` entries of the round's permutation of range(population); size <= population.

    >>> small, large = (prefix(0, 7, 1000, size).tolist() for size in (3, 5))
    >>> small == large[:3], len(set(large))
    (True, 5)
    """
    return seeds.sample(seeds.key(seed, "cohort", round_index), population, size)


def make(seed: int, population: int, size_at: Callable[[int], int]) -> Sampler:
    """Close the pair over the experiment's seed and the cohort's size after t finished rounds."""

    def init() -> State:
        return {}

    def sample(state: State, round_index: int) -> Positions:
        return prefix(seed, round_index, population, size_at(round_index))

    return Sampler(init, sample)
