"""Client AdamW: y <- y - lr wd y, then Adam's step; the decay enters neither the clipped gradient nor the moments.

State: Adam's, 0 at the start of every round. The form of torch.optim.AdamW. Source: Loshchilov and Hutter (2019),
algorithm 2, without a schedule multiplier.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor

from raysim.client import adam
from raysim.client.optimizer import ClientOptimizer, Rate, State
from raysim.section import Section


class AdamW(Section):
    """lr: the learning rate of the first round.
    beta1: what the first moment keeps of itself.
    beta2: what the second moment keeps of itself.
    eps: > 0, because a weight without gradients stays.
    weight_decay: shrinks the weights by themselves, times the learning rate.
    """

    name: Literal["adamw"] = "adamw"
    lr: NonNegativeFloat = 0.001
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.999, ge=0, lt=1)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.01


def make(section: AdamW) -> ClientOptimizer:
    """Close the pair over its constants."""
    init, inner = adam.moments(section.beta1, section.beta2, section.eps)

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        params.mul_(1 - lr * section.weight_decay)
        inner(params, gradient, state, lr)

    return ClientOptimizer(init, step)
