"""Defines a fair objective: from the clients' losses of the model that they receive to the weights of their updates.

It is a record of pure functions. A round calls, after the phase of losses (algorithm/start_losses.py):

    weights = weigh(state, start_losses, lr)    before local training: how every client enters the mean
    state   = learn(state, start_losses)        with the server's step

With the weights' w_i and c_i the mean is sum_i w_i h_i / sum_i w_i (1 + c_i |h_i|^2). A client's p_i is its share, n_i
("examples") or 1 ("uniform"), over the sum of all shares.

Source: Wang et al. (2021), section 7.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from raysim.server.sums import Sums

State = Mapping[str, Tensor]


class StartLoss(NamedTuple):
    """A client before it trains. share: proportional to p_i. loss: f_i, its mean loss of the model that it received."""

    position: int
    share: float
    loss: float


class FairWeight(NamedTuple):
    """weight: w_i. curvature: c_i; see the module's head."""

    weight: float
    curvature: float = 0.0


class Fairness(NamedTuple):
    """See the module's head; tilt.py is a short example.

    weigh: the weights, one for each client; lr is the clients' of the round.
    init: from N, the number of training clients, to the state before the first round.
    learn: the state after a round; None: it stays.
    uniform_by_default: p_i are equal unless the experiment says otherwise.
    everyone: defined with every client in every round only.
    server_sgd: the server's optimizer must be SGD.
    divides_by_lr: the clients' learning rate must not be 0.
    """

    weigh: Callable[[State, Sequence[StartLoss], float], list[FairWeight]]
    init: Callable[[int], State] = lambda population: {}
    learn: Callable[[State, Sequence[StartLoss]], State] | None = None
    uniform_by_default: bool = False
    everyone: bool = False
    server_sgd: bool = False
    divides_by_lr: bool = False


def divide_sums(sums: Sums) -> Sums:
    """Return the sums whose mean, delta / weight times normaliser / weight, is divided by sum w_i (1 + c_i |h_i|^2).

    The normaliser that the workers added up is that sum.
    """
    if sums.normaliser == sums.weight:
        return sums
    return replace(sums, normaliser=sums.weight**2 / sums.normaliser)


def figures(start_losses: Sequence[StartLoss], weights: Sequence[FairWeight]) -> dict[str, float | None]:
    """Return start_loss = sum p_i f_i before weights change, start_loss_max, and effective_clients after it.

    effective_clients = (sum w)^2 / sum w^2.

    >>> figures([StartLoss(0, 1, 2.0), StartLoss(1, 3, 4.0)], [FairWeight(1.0), FairWeight(1.0)])
    {'start_loss': 3.5, 'start_loss_max': 4.0, 'effective_clients': 2.0}
    """
    shares, squares = sum(one.share for one in start_losses), sum(one.weight**2 for one in weights)
    return {
        "start_loss": sum(one.share * one.loss for one in start_losses) / shares if shares else None,
        "start_loss_max": max((one.loss for one in start_losses), default=None),
        "effective_clients": sum(one.weight for one in weights) ** 2 / squares if squares else None,
    }
