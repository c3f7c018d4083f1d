"""Client Adagrad: G <- G + g^2; y <- y - lr g / (sqrt(G) + eps). G starts at v0 in every round.

The form of torch.optim.Adagrad without its own decay of the learning rate. Weight decay is added to the gradient by the
training loop, after clipping. Source: Duchi et al. (2011).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.client.optimizers.optimizer import ClientOptimizer, Rate, State, descend_ratio
from raysim.config.section import Section
from raysim.config.values import Epsilon, Factor, NonNegative


class ClientAdagrad(Section):
    """Adagrad, its accumulator starting anew in every round."""

    name: Literal["adagrad"] = "adagrad"
    lr: Factor = Field(0.01, description="Learning rate of the first round.")
    eps: Epsilon = Field(1e-10, description="Added to the root; > 0, because a weight without gradients stays.")
    v0: NonNegative = Field(0.0, description="First value of the sum of squares in every round.")
    weight_decay: Factor = Field(0.0, description="Factor of the weights that are added to the gradient.")


def make(section: ClientAdagrad) -> ClientOptimizer:
    """Close the pair over its constants.

    >>> from raysim.client.optimizers.optimizer import path
    >>> path(make(ClientAdagrad(eps=3)), 0.0, [3.0, 4.0], lr=1.0)  # G = 9, 25; steps 3 / (3 + 3), 4 / (5 + 3)
    [-0.5, -1.0]
    """

    def init(params: Tensor) -> State:
        return {"G": torch.full_like(params, section.v0), "scratch": params.new_zeros(params.shape)}

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        squares = state["G"].addcmul_(gradient, gradient)
        descend_ratio(params, gradient, torch.sqrt(squares, out=state["scratch"]).add_(section.eps), lr)

    return ClientOptimizer(init, step, divisor=lambda state: state["scratch"])
