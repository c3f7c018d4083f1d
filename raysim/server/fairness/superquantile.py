"""Superquantile (conditional value at risk): minimises the mean loss of the clients in the tail of largest losses.

w_i = pi_i, which maximise sum pi_i f_i with 0 <= pi_i <= p_i / tail and sum pi_i = 1: from the largest loss on, clients
get p_i / tail until 1 is spent. Clients with equal losses at the end share what is left in proportion to p_i. tail = 1
is FedAvg. No state.

Source: Laguel et al. (2021), "A superquantile approach to federated learning with heterogeneous devices";
docs/algorithms.md section 4. Departure: the client at the quantile gets what is left to spend; in their code it
has all its weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Literal

from pydantic import Field

from raysim.config.section import Section
from raysim.server.fairness.fairness import Fairness, FairWeight, StartLoss, State


class Superquantile(Section):
    """Superquantile: only the clients with the largest losses count."""

    name: Literal["superquantile"] = "superquantile"
    tail: float = Field(ge=1e-6, le=1, description="Share of the clients' weight that counts; 1 is FedAvg.")


def tail_weights(start_losses: Sequence[StartLoss], tail: float) -> list[float]:
    """Return pi_i in units of p_i / tail, so that a client that counts whole has its share as its weight.

    >>> tail_weights([StartLoss(0, 1, 3.0), StartLoss(1, 1, 5.0), StartLoss(2, 2, 4.0)], 0.5)
    [0.0, 1, 1.0]
    """
    left = tail * sum(one.share for one in start_losses)
    weights = [0.0] * len(start_losses)
    by_loss = sorted(range(len(start_losses)), key=lambda row: -start_losses[row].loss)
    for _, tied in groupby(by_loss, key=lambda row: start_losses[row].loss):
        rows = list(tied)
        share = sum(start_losses[row].share for row in rows)
        for row in rows:
            weights[row] = start_losses[row].share if share <= left else start_losses[row].share * left / share
        left = max(0.0, left - share)
    return weights


def make(section: Superquantile) -> Fairness:
    """Return the weights of the tail."""

    def weigh(state: State, start_losses: Sequence[StartLoss], lr: float) -> list[FairWeight]:
        return [FairWeight(weight) for weight in tail_weights(start_losses, section.tail)]

    return Fairness(weigh)
