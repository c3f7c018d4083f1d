"""Multinomial sampling: M independent draws with probability n_i / n, to be weighted uniformly.

A client drawn twice is in the cohort twice: it trains once and counts twice. The expected update is that of the whole
population weighted by examples. Draws are nested across sizes, as the uniform sampler's are.

Source: Li et al. (2020), scheme I; docs/algorithms.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from raysim import seeds
from raysim.cohort.sampler import Positions, Sampler, State
from raysim.config.section import Section
from raysim.seeds import Int64s


class Md(Section):
    """Needs `server.weighting = "uniform"`: the examples are in the probabilities already."""

    name: Literal["md"] = "md"


def make(seed: int, sizes: Int64s, size_at: Callable[[int], int]) -> Sampler:
    """Close the pair over the clients' numbers of examples."""
    last_example = np.cumsum(sizes)

    def init() -> State:
        return {}

    def sample(state: State, round_index: int) -> Positions:
        draws = seeds.stream(seeds.key(seed, "cohort", round_index), size_at(round_index))
        # An example at random, by the remainder: biased by less than n / 2**64; then the client it belongs to.
        examples = (draws % np.uint64(last_example[-1])).astype(np.int64)
        return np.searchsorted(last_example, examples, side="right").astype(np.int64)

    return Sampler(init, sample)
