"""Server SGD, which is FedAvg: x <- x - lr f g. With lr 1 the new model is the weighted average of the clients' models.

State: none. f is FedGLAD's factor, 1 without it. Source: McMahan et al. (2017), algorithm 1; docs/algorithms.md
section 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from raysim.section import Section
from raysim.server.optimizer import Descent, ServerOptimizer, State, Stepped


class Sgd(Section):
    """lr: the server learning rate."""

    name: Literal["sgd"] = "sgd"
    lr: NonNegativeFloat = 1.0


def make(section: Sgd) -> ServerOptimizer:
    """The pair; the learning rate arrives with each descent."""

    def init(params: Tensor) -> State:
        return {}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        return Stepped(descent.fed(params, 1.0, -descent.lr), state)

    return ServerOptimizer(init, step)
