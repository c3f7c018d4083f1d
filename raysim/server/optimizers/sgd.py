"""Server SGD, which is FedAvg: x <- x - lr f g. With lr 1 the new model is the weighted average of the clients' models.

State: none. f is FedGLAD's factor, 1 without it. Source: McMahan et al. (2017), algorithm 1; docs/algorithms.md
section 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Factor
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, State, Stepped


class Sgd(Section):
    """FedAvg's step: server SGD."""

    name: Literal["sgd"] = "sgd"
    lr: Factor = Field(1.0, description="Server learning rate.")


def make(section: Sgd) -> ServerOptimizer:
    """The pair; the learning rate arrives with each descent.

    >>> from raysim.server import path
    >>> path(make(Sgd()), 3.0, [1.0, 2.0], lr=0.5)
    [2.5, 1.5]
    """

    def init(params: Tensor) -> State:
        return {}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        return Stepped(descent.fed(params, 1.0, -descent.lr), state)

    return ServerOptimizer(init, step)
