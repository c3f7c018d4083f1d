"""Availability: a client takes part only while its diurnal window is open; among those, uniformly without replacement.

Client i has a phase u_i, uniform on [0, spread) of a day and addressed by (seed, client). It is available after t
finished rounds where the fractional part of t / day + u_i is below `open`. With spread = 1 as many clients are awake at
any time; a smaller spread is a population of few time zones, most of which sleeps at once. Where fewer than
`cohort.size` are awake, all of them are the cohort, and where none is, the round leaves the model as it is.

The cohort is the prefix of the uniform sampler's permutation, with sleepers passed over: nested across sizes, and equal
across algorithms. Cost is about size / open.
"""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from raysim import seeds
from raysim.arrays import Int64s
from raysim.cohort import uniform
from raysim.cohort.sampler import CohortAt, Positions, Sampler, State, nothing
from raysim.config.section import Section
from raysim.config.values import Positive

Share = Annotated[float, Field(ge=1e-6, le=1)]


class Availability(Section):
    """Clients are available in a diurnal window."""

    name: Literal["availability"] = "availability"
    day: Positive = Field(24.0, description="Rounds of a day.")
    open: Share = Field(0.5, description="Share of a day in which a client's window is open.")
    spread: Share = Field(1.0, description="Share of a day over which the clients' phases are spread.")


def is_open(section: Availability, seed: int, positions: Int64s, round_index: int) -> npt.NDArray[np.bool_]:
    """Whether each client's window is open in the round."""
    phases = (seeds.keys(seed, "phase", positions) >> np.uint64(11)).astype(np.float64) * 2.0**-53 * section.spread
    return np.asarray((round_index / section.day + phases) % 1.0 < section.open)


def make(section: Availability) -> Sampler:
    """Cohorts follow from seed and round alone.

    >>> from raysim.cohort.sampler import drawn_in
    >>> (awake,) = drawn_in(1, make(Availability(open=1)), [1] * 5, size=3)
    >>> awake == uniform.prefix(0, 0, 5, 3).tolist()  # all are awake
    True
    """

    def sample(state: State, at: CohortAt) -> Positions:
        size, population = at.size, at.population
        looked_at = min(population, max(size, int(size / section.open)))
        while True:
            candidates = uniform.prefix(at.seed, at.round, population, looked_at)
            awake = candidates[is_open(section, at.seed, candidates, at.round)]
            if len(awake) >= size or looked_at == population:
                return awake[:size]
            looked_at = min(population, 2 * looked_at)

    return Sampler(nothing, sample, name=section.name, varies=True)
