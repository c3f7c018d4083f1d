"""Power of choice: of more clients than are needed, those with the largest losses train.

`candidates` >= M clients are drawn without replacement, one after another in proportion to n_i, by AdaFL's law and with
its draws (adafl.py). All of them receive the model, and say f_i, their mean loss of it (algorithm/start_losses.py). The
M with the largest f_i train, the largest first, ties to the first drawn; with all clients as candidates that is a sort.
A candidate without a finite loss leaves the round. No state. Cost is O(N) a round.

Source: Cho et al. (2020), pow-d; docs/algorithms.md section 5. The weights of those that train are equal by
default, because the examples are in the probabilities already.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from raysim.arrays import Float64s
from raysim.cohort.adafl import in_proportion
from raysim.cohort.sampler import CohortAt, Positions, Sampler, State, nothing
from raysim.config.section import Section
from raysim.config.values import Count


class PowerOfChoice(Section):
    """Of more candidates those with the largest losses."""

    name: Literal["power_of_choice"] = "power_of_choice"
    candidates: Count = Field(description="Clients that receive the model and say their loss; at least `cohort.size`.")


def choose(drawn: Positions, losses: Float64s, size: int) -> Positions:
    """Return the clients that train.

    >>> choose(np.array([7, 3, 5, 1]), np.array([0.5, 2.0, 1.0, 2.0]), 3).tolist()
    [3, 1, 5]
    """
    return drawn[np.argsort(-losses, kind="stable")[:size]]


def make(section: PowerOfChoice) -> Sampler:
    """Cohorts follow from seed, round and the clients' losses.

    >>> from raysim.cohort.sampler import drawn_in
    >>> (candidates,) = drawn_in(1, make(PowerOfChoice(candidates=3)), [0, 1, 1, 0, 1], size=1)
    >>> sorted(candidates)
    [1, 2, 4]
    """

    def sample(state: State, at: CohortAt) -> Positions:
        return in_proportion(at.examples, at.seed, at.round, section.candidates)

    return Sampler(
        nothing,
        sample,
        name=section.name,
        choose=lambda at, drawn, losses: choose(drawn, losses, at.size),
        asks=section.candidates,
        uniform_by_default=True,
    )
