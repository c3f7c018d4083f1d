"""Client SGD with momentum: v <- rho v + grad; y <- y - lr v; v = 0 at the start of every round.

Source: docs/algorithms.md section 0, "local SGD"; the form of torch.optim.SGD with dampening 0. Weight decay is
applied by the training loop, after clipping, for every optimizer alike.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.client.optimizers.optimizer import ClientOptimizer, Rate, State, descend
from raysim.config.section import Section
from raysim.config.values import Factor


class ClientSgd(Section):
    """SGD with momentum."""

    name: Literal["sgd"] = "sgd"
    lr: Factor = Field(0.1, description="Learning rate of the first round.")
    momentum: float = Field(0.0, ge=0, lt=1, description="Momentum, rho.")
    weight_decay: Factor = Field(0.0, description="Factor of the weights that are added to the gradient.")


def make(section: ClientSgd) -> ClientOptimizer:
    """Close the pair over its momentum; without momentum there is no state.

    >>> from raysim.client.optimizers.optimizer import path
    >>> path(make(ClientSgd(momentum=0.5)), 0.0, [2.0, 2.0, 0.0], lr=1.0)  # v = 2, 3, 1.5
    [-2.0, -5.0, -6.5]
    """
    rho = section.momentum

    def init(params: Tensor) -> State:
        return {"velocity": params.new_zeros(params.shape)} if rho else {}

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        direction = gradient
        if rho:
            direction = state["velocity"].mul_(rho).add_(gradient)
        descend(params, direction, lr)

    return ClientOptimizer(init, step, affine=None if rho else lambda state: (1.0, None))
