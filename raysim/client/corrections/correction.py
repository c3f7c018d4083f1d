"""A correction: how clients' local gradients are bent so that the cohort pulls together.

A record of pure functions over flat vectors (P,), the client's half and the server's. In local training

    gradient = grad - [anchored] grad at x on the same batch + offset_i + pull (y - x)

with one vector offset_i per client, fixed for the round; clipping, weight decay and the optimizer come after it. So all
that differs from one method to the next is where offset_i comes from, and what is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor

from raysim.client.optimizer import ClientOptimizer, State

Vectors = Mapping[str, Tensor]
"""Flat vectors (P,) by name."""


class Begins(NamedTuple):
    """A client at the beginning of its round.

    sent: what came beside the model. state: the client's own vector, zeros before its first round; empty where clients
    remember nothing. gradient: its full local gradient at x, where the correction asks for it.
    """

    sent: Vectors
    state: Tensor
    gradient: Tensor | None


class Ended(NamedTuple):
    """A client at the end of its round.

    delta: y - x, before an adversary had its way. tau: local steps taken. lr: of this round. gap: rounds since it last
    took part, t - t'; at its first, any number. gradient: the mean of its raw loss gradients, where that is summed.
    """

    sent: Vectors
    state: Tensor
    delta: Tensor
    tau: int
    lr: float
    gap: int
    gradient: Tensor | None


class Stepped(NamedTuple):
    """A round after the server's optimizer.

    state: the server's half before it. params: x - lr f g. g: f g, the pseudo-gradient as FedGLAD scaled it: x - the
    clients' mean. clients, population: M and N. lr: the clients' of this round. tau: mean local steps of the cohort.
    changes: sum over the cohort of what their states changed by, where the correction sums that. gradient: the
    cohort's mean full gradient at x, where there was a pass for it.
    """

    state: Vectors
    params: Tensor
    g: Tensor
    clients: int
    population: int
    lr: float
    tau: float
    changes: Tensor
    gradient: Tensor | None


class Settled(NamedTuple):
    """`params`: the model that is broadcast next. `state`: the server's half. Arguments are not written to."""

    params: Tensor
    state: Vectors


def _nothing(params: Tensor) -> Vectors:
    return {}


def _sends_nothing(state: Vectors, gradient: Tensor | None) -> Vectors:
    return {}


class Correction(NamedTuple):
    """See the module's head; the defaults correct nothing.

    pull: mu of the pull towards x.
    offset: offset_i; None: there is none.
    after: the client's vector after the round; None: clients remember nothing.
    sums_changes: the sum of `after` minus before travels to the server.
    sums_gradients: `after` needs the mean of the raw loss gradients.
    full_gradients: a pass before local training takes full local gradients at x, and their mean is sent.
    own_gradient: `offset` needs the client's own full gradient.
    anchored: see above.
    optimizer, start: what stands in for the client's optimizer, and its state in every round, from what was sent.
    init: the server's half before the first round, from the initial model.
    sends: what goes beside the model, from the server's half and the mean full gradient.
    settle: the model and the server's half after a round; None: the optimizer's model, and no half.
    average: the vector of the server's half that is evaluated beside the model.
    """

    pull: float = 0.0
    offset: Callable[[Begins], Tensor] | None = None
    after: Callable[[Ended], Tensor] | None = None
    sums_changes: bool = False
    sums_gradients: bool = False
    full_gradients: bool = False
    own_gradient: bool = False
    anchored: bool = False
    optimizer: ClientOptimizer | None = None
    start: Callable[[Vectors], State] | None = None
    init: Callable[[Tensor], Vectors] = _nothing
    sends: Callable[[Vectors, Tensor | None], Vectors] = _sends_nothing
    settle: Callable[[Stepped], Settled] | None = None
    average: str | None = None
