"""Agnostic federated learning: minimises the clients' worst mixture, the largest sum lambda_i f_i over all lambda.

w_i = lambda_i; after the round lambda <- the projection of lambda + lr f onto the simplex, f the losses of the model
that the round began with. A client that was rejected has nothing added.

State: lambda, float64 (N,), 1/N at first.

Source: Mohri et al. (2019), "Agnostic federated learning"; the projection is that of Duchi et al. (2008);
docs/algorithms.md section 4. Departures: every client takes part in every round, with as many local steps as it takes,
and the models are not averaged over the rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Factor
from raysim.server.fairness.fairness import Fairness, FairWeight, StartLoss, State


class Afl(Section):
    """Agnostic federated learning (AFL): weights follow the losses by gradient ascent on the simplex."""

    name: Literal["afl"] = "afl"
    lr: Factor = Field(description="Learning rate of the clients' weights lambda; 0 keeps them equal.")


_LARGE = 2.0**20
"""Weights have at least 32 bits behind the point below it."""


def projected(vector: Tensor) -> Tensor:
    """Return the nearest point of the simplex.

    >>> projected(torch.tensor([0.5, 1.5, -1.0], dtype=torch.float64)).tolist()
    [0.0, 1.0, 0.0]
    >>> projected(torch.tensor([0.75, 0.75], dtype=torch.float64)).tolist()
    [0.5, 0.5]
    """
    falling = vector.sort(descending=True).values
    if abs(float(falling[0])) > _LARGE:
        # What is added to all changes nothing, and beside such numbers a weight of 1 is lost by rounding.
        vector, falling = vector - falling[0], falling - falling[0]
    excess = (falling.cumsum(0) - 1) / torch.arange(1, len(vector) + 1, dtype=vector.dtype)
    last = int((falling > excess).nonzero()[-1])
    return (vector - excess[last]).clamp(min=0)


def make(section: Afl) -> Fairness:
    """Return the weights lambda, and their ascent."""

    def init(population: int) -> State:
        return {"lambda": torch.full((population,), 1 / population, dtype=torch.float64)}

    def weigh(state: State, start_losses: Sequence[StartLoss], lr: float) -> list[FairWeight]:
        weights = state["lambda"].tolist()
        return [FairWeight(weights[one.position]) for one in start_losses]

    def learn(state: State, start_losses: Sequence[StartLoss]) -> State:
        raised = state["lambda"].clone()
        for one in start_losses:
            raised[one.position] += section.lr * one.loss
        return {"lambda": projected(raised)}

    return Fairness(weigh, init, learn, uniform_by_default=True, everyone=True)
