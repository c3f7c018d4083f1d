"""Client Adagrad: G <- G + g^2; y <- y - lr g / (sqrt(G) + eps). G starts at v0 in every round.

The form of torch.optim.Adagrad without its own decay of the learning rate. Weight decay is added to the gradient by the
training loop, after clipping. Source: Duchi et al. (2011).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat, PositiveFloat
from torch import Tensor

from raysim.client.optimizer import ClientOptimizer, Rate, State, descend_ratio
from raysim.section import Section


class Adagrad(Section):
    """lr: the learning rate of the first round.
    eps: > 0, because a weight without gradients stays.
    v0: what the sum of squares begins with in every round.
    weight_decay: times the weights is added to the gradient.
    """

    name: Literal["adagrad"] = "adagrad"
    lr: NonNegativeFloat = 0.01
    eps: PositiveFloat = 1e-10
    v0: NonNegativeFloat = 0.0
    weight_decay: NonNegativeFloat = 0.0


def make(section: Adagrad) -> ClientOptimizer:
    """Close the pair over its constants."""

    def init(params: Tensor) -> State:
        return {"G": torch.full_like(params, section.v0), "scratch": params.new_zeros(params.shape)}

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        squares = state["G"].addcmul_(gradient, gradient)
        descend_ratio(params, gradient, torch.sqrt(squares, out=state["scratch"]).add_(section.eps), lr)

    return ClientOptimizer(init, step)
