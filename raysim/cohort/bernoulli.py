"""Bernoulli sampling: every client takes part independently with the same probability, so cohorts vary in size.

Cost is that of the cohort, not of the population: the gaps between participants are geometric, and drawn directly. A
cohort may be empty: that round leaves the model as it is, except for the noise of privacy.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from pydantic import Field

from raysim import seeds
from raysim.cohort.sampler import CohortAt, DrawnClients, Positions, Sampler, State, nothing
from raysim.config.section import Section


class Bernoulli(Section):
    """Every client takes part by an independent draw."""

    name: Literal["bernoulli"] = "bernoulli"
    probability: float = Field(
        ge=1e-12, le=1, description="Probability of each client in each round, in place of `cohort.size`."
    )


def make(section: Bernoulli) -> Sampler:
    """Cohorts are drawn gap by gap.

    >>> from raysim.cohort.sampler import drawn_in
    >>> drawn_in(1, make(Bernoulli(probability=1)), [1] * 5, size=0)
    [[0, 1, 2, 3, 4]]
    >>> drawn_in(2, make(Bernoulli(probability=1e-12)), [1] * 5, size=0)
    [[], []]
    """

    def sample(state: State, at: CohortAt) -> Positions:
        population = at.population
        if section.probability == 1:
            return np.arange(population, dtype=np.int64)
        expected = population * section.probability
        # Enough gaps to pass the end except for odds below 1e-30; were they not, the stream only goes on further.
        length = int(expected + 12 * math.sqrt(expected) + 64)
        key = seeds.key(at.seed, "cohort", at.round)
        while True:
            uniform = (seeds.stream(key, length) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            gaps = np.floor(np.log1p(-uniform) / math.log1p(-section.probability))
            positions = np.cumsum(gaps + 1) - 1
            if positions[-1] >= population:
                return positions[positions < population].astype(np.int64)
            length *= 2

    return Sampler(
        nothing,
        sample,
        name=section.name,
        varies=True,
        sized_by="its probability sets it",
        expected=lambda round_index, population: section.probability * population,
        drawn=DrawnClients(section.probability),
    )
