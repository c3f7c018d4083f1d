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
from raysim.arrays import Float64s, Int64s
from raysim.cohort import uniform
from raysim.cohort.sampler import CohortAt, Positions, Sampler, State, nothing
from raysim.config.section import Section
from raysim.config.values import Positive

Share = Annotated[float, Field(ge=1e-6, le=1)]


class Availability(Section):
    """Clients are available in a diurnal window; where fewer than `cohort.size` are, all of them are the cohort.

    Client i is available after t rounds where the fractional part of t / day + u_i is below `open`; u_i is uniform on
    [0, spread). A round in which nobody is leaves the model as it is.
    """

    name: Literal["availability"] = "availability"
    day: Positive = Field(24.0, description="Rounds of a day.")
    open: Share = Field(0.5, description="Share of a day in which a client's window is open.")
    spread: Share = Field(1.0, description="Share of a day over which the clients' phases are spread.")


def is_open(section: Availability, seed: int, positions: Int64s, round_index: int) -> npt.NDArray[np.bool_]:
    """Whether each client's window is open in the round."""
    return np.asarray((round_index / section.day + _phases(section, seed, positions)) % 1.0 < section.open)


def _phases(section: Availability, seed: int, positions: Int64s) -> Float64s:
    return (seeds.keys(seed, "phase", positions) >> np.uint64(11)).astype(np.float64) * 2.0**-53 * section.spread


def num_open(section: Availability, seed: int, positions: Int64s, rounds: Int64s) -> Int64s:
    """Return the number of these clients whose window is open, in each of the rounds.

    >>> section, clients, rounds = Availability(day=4, spread=0.3), np.arange(50), np.arange(4)
    >>> counted = [int(is_open(section, 0, clients, t).sum()) for t in rounds.tolist()]
    >>> counted == num_open(section, 0, clients, rounds).tolist()
    True
    """
    phases, time = np.sort(_phases(section, seed, positions)), rounds / section.day % 1.0
    # Open between -time and open - time, and a day later.
    bounds = [np.searchsorted(phases, edge - time) for edge in (0.0, section.open, 1.0, 1.0 + section.open)]
    return np.asarray(bounds[1] - bounds[0] + bounds[3] - bounds[2], np.int64)


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

    def available(seed: int, positions: Int64s, rounds: Int64s) -> Int64s:
        return num_open(section, seed, positions, rounds)

    return Sampler(nothing, sample, name=section.name, varies=True, available=available)
