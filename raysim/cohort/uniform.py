"""Uniform sampling without replacement: the prefix of one permutation addressed by (seed, round).

So cohorts are nested across sizes and equal across algorithms. Cost is O(size), whatever the population: the first
`size` swaps of a Fisher-Yates shuffle, with the array kept as the dictionary of its moved entries.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from raysim import seeds
from raysim.cohort.sampler import Positions, Sampler, State
from raysim.section import Section


class Uniform(Section):
    """Every set of `cohort.size` clients is equally likely."""

    name: Literal["uniform"] = "uniform"


def prefix(seed: int, round_index: int, population: int, size: int) -> Positions:
    """The first `size` entries of the round's permutation of range(population); size <= population."""
    moved: dict[int, int] = {}
    chosen = np.empty(size, dtype=np.int64)
    for place, draw in enumerate(seeds.stream(seeds.key(seed, "cohort", round_index), size).tolist()):
        # The high word of a 64 x 64 bit product: uniform on range(population - place), but for
        # a bias of population / 2**64.
        other = place + (draw * (population - place) >> 64)
        chosen[place] = moved.get(other, other)
        moved[other] = moved.get(place, place)
    return chosen


def make(seed: int, population: int, size: int) -> Sampler:
    """Close the pair over the experiment's seed and cohort size."""

    def init() -> State:
        return {}

    def sample(state: State, round_index: int) -> Positions:
        return prefix(seed, round_index, population, size)

    return Sampler(init, sample)
