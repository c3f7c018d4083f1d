"""Server SGD, which is FedAvg: x <- x - lr g. With lr 1 the new model is the weighted average of the clients' models.

Source: McMahan et al. (2017), algorithm 1; algorithms.md section 1. No state.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from raysim.section import Section
from raysim.server.optimizer import ServerOptimizer, State


class Sgd(Section):
    """`lr` is the server learning rate."""

    name: Literal["sgd"] = "sgd"
    lr: NonNegativeFloat = 1.0


def make(section: Sgd) -> ServerOptimizer:
    """Close the pair over its learning rate."""

    def init(params: Tensor) -> State:
        return {}

    def step(params: Tensor, g: Tensor, state: State) -> tuple[Tensor, State]:
        return params.sub(g, alpha=section.lr), state

    return ServerOptimizer(init, step)
