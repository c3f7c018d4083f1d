"""Client Adam: m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
y <- y - lr (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps), k = 1, 2, ... the local step of this round.

State: m, v and k start at 0 in every round. The form of torch.optim.Adam. Weight decay is added to the gradient by the
training loop, after clipping, as for every optimizer but adamw. Source: Kingma and Ba (2015), algorithm 1.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from raysim.client.optimizer import ClientOptimizer, Rate, State, descend_ratio
from raysim.section import Section


class Adam(Section):
    """lr: the learning rate of the first round.
    beta1: what the first moment keeps of itself.
    beta2: what the second moment keeps of itself.
    eps: > 0, because a weight without gradients stays.
    weight_decay: times the weights is added to the gradient.
    """

    name: Literal["adam"] = "adam"
    lr: NonNegativeFloat = 0.001
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0


def make(section: Adam) -> ClientOptimizer:
    """Close the pair over its constants."""
    return moments(section.beta1, section.beta2, section.eps)


def moments(b1: float, b2: float, eps: float) -> ClientOptimizer:
    """The pair, which adamw uses too.

    `k` counts on the CPU, a row per client of a stack: those still at work have taken equally many local steps.
    """

    def init(params: Tensor) -> State:
        zeros = {name: params.new_zeros(params.shape) for name in ("m", "v", "scratch")}
        return {**zeros, "k": torch.zeros((*params.shape[:-1], 1), dtype=torch.int64)}

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        k = int(state["k"].add_(1).flatten()[0])
        m = state["m"].mul_(b1).add_(gradient, alpha=1 - b1)
        v = state["v"].mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        denominator = torch.sqrt(v, out=state["scratch"]).div_(math.sqrt(1 - b2**k)).add_(eps)
        descend_ratio(params, m, denominator, lr / (1 - b1**k))

    return ClientOptimizer(init, step)
