"""Uniform sampling without replacement: the prefix of one permutation addressed by (seed, round).

So cohorts are nested across sizes and equal across algorithms, and cost O(size), whatever the population.
"""

from __future__ import annotations

from typing import Literal

from raysim import seeds
from raysim.cohort.sampler import CohortAt, DrawnClients, Positions, Sampler, State, nothing
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


def make(section: UniformSampler) -> Sampler:
    """Cohorts follow from seed and round alone.

    >>> from raysim.cohort.sampler import drawn_in
    >>> (all_of_them,) = drawn_in(1, make(UniformSampler()), [1] * 5, size=5)
    >>> (some,) = drawn_in(1, make(UniformSampler()), [1] * 5, size=2)
    >>> sorted(all_of_them), some == all_of_them[:2]
    ([0, 1, 2, 3, 4], True)
    """

    def sample(state: State, at: CohortAt) -> Positions:
        return prefix(at.seed, at.round, at.population, at.size)

    return Sampler(nothing, sample, name=section.name, drawn=DrawnClients())
