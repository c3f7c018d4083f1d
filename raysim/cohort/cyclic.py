"""Cyclic sampling: clients are in groups that take turns, so that a client takes part at most every `groups` rounds.

Client i's group is uniform, by (seed, client). In round t each of group t mod groups takes part by an independent draw.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from raysim import seeds
from raysim.cohort.sampler import CohortAt, DrawnClients, Positions, Sampler, State, nothing
from raysim.config.section import Section


class Cyclic(Section):
    """Groups of clients take turns; within its group's turn, every client takes part by an independent draw."""

    name: Literal["cyclic"] = "cyclic"
    groups: int = Field(ge=1, le=10**6, description="Number of groups; group t mod groups has its turn in round t.")
    probability: float = Field(
        1.0, ge=1e-12, le=1, description="Probability of each client of the group that has its turn."
    )


def make(section: Cyclic) -> Sampler:
    """Cohorts cost a draw for every client.

    >>> from raysim.cohort.sampler import drawn_in
    >>> first, second, again = drawn_in(3, make(Cyclic(groups=2)), [1] * 5, size=0)
    >>> sorted(first + second), again == first
    ([0, 1, 2, 3, 4], True)
    """

    def sample(state: State, at: CohortAt) -> Positions:
        everyone = np.arange(at.population, dtype=np.int64)
        group = seeds.keys(at.seed, "cohort/group", everyone) % np.uint64(section.groups)
        members: Positions = everyone[group == np.uint64(at.round % section.groups)]
        if section.probability == 1:
            return members
        chosen: Positions = members[
            seeds.uniforms(seeds.keys(at.seed, "cohort", at.round, members)) < section.probability
        ]
        return chosen

    return Sampler(
        nothing,
        sample,
        name=section.name,
        varies=True,
        sized_by="its groups and its probability set it",
        expected=lambda round_index, population: section.probability * population / section.groups,
        drawn=DrawnClients(section.probability, section.groups),
    )
