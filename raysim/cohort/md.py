"""Multinomial sampling: M independent draws with probability n_i / n, to be weighted uniformly.

A client drawn twice is in the cohort twice: it trains once and counts twice. The expected update is that of the whole
population weighted by examples. Draws are nested across sizes, as the uniform sampler's are.

Source: Li et al. (2020), scheme I; docs/algorithms.md section 5.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from raysim import seeds
from raysim.cohort.sampler import CohortAt, Positions, Sampler, State, nothing
from raysim.config.section import Section


class Md(Section):
    """Clients are drawn by their shares of the examples, with replacement; needs `server.weighting = "uniform"`."""

    name: Literal["md"] = "md"


def make(section: Md) -> Sampler:
    """Draws are examples at random.

    >>> from raysim.cohort.sampler import drawn_in
    >>> drawn_in(2, make(Md()), [0, 0, 7, 0, 0], size=3)  # all examples are client 2's
    [[2, 2, 2], [2, 2, 2]]
    """

    def sample(state: State, at: CohortAt) -> Positions:
        draws, ends = seeds.stream(seeds.key(at.seed, "cohort", at.round), at.size), at.clients.ends
        # An example at random, by the remainder: biased by less than n / 2**64; then the client it belongs to.
        examples = (draws % np.uint64(ends[-1])).astype(np.int64)
        return np.searchsorted(ends, examples, side="right").astype(np.int64)

    return Sampler(nothing, sample, name=section.name, repeats=True, uniform_weights=True)
