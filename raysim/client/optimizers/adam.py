"""Client Adam and AdamW.

m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2;
y <- y - lr (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps), k = 1, 2, ... the local step of this round.

AdamW takes y <- y - lr wd y before that: its decay enters neither the clipped gradient nor the moments. Adam's is added
to the gradient by the training loop, after clipping, as for every other optimizer.

State: m, v and k start at 0 in every round. The forms of torch.optim.Adam and torch.optim.AdamW. Sources: Kingma and Ba
(2015), algorithm 1; Loshchilov and Hutter (2019), algorithm 2, without a schedule multiplier.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.client.optimizers.optimizer import ClientOptimizer, Rate, State, descend_ratio
from raysim.config.section import Section
from raysim.config.values import Epsilon, Factor


class ClientAdam(Section):
    """Adam with bias correction."""

    name: Literal["adam"] = "adam"
    lr: Factor = Field(0.001, description="Learning rate of the first round.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment.")
    eps: Epsilon = Field(1e-8, description="Added to the root; > 0, because a weight without gradients stays.")
    weight_decay: Factor = Field(0.0, description="Factor of the weights that are added to the gradient.")


class ClientAdamW(Section):
    """Adam with decoupled weight decay."""

    name: Literal["adamw"] = "adamw"
    lr: Factor = Field(0.001, description="Learning rate of the first round.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.999, ge=0, lt=1, description="Decay of the second moment.")
    eps: Epsilon = Field(1e-8, description="Added to the root; > 0, because a weight without gradients stays.")
    weight_decay: Factor = Field(
        0.01, description="Share of the weights, times the learning rate, that a step takes off."
    )


def make(section: ClientAdam | ClientAdamW) -> ClientOptimizer:
    """Close the pair over its constants.

    `k` counts on the CPU, a row per client of a stack: those still at work have taken equally many local steps.

    >>> from raysim.client.optimizers.optimizer import path
    >>> path(make(ClientAdam(eps=1)), 0.0, [3.0], lr=1.0)  # a first step of lr g / (|g| + eps)
    [-0.75]
    >>> path(make(ClientAdam(beta1=0.5, beta2=0, eps=1)), 0.0, [3.0, 0.0], lr=1.0)  # 3 / (3 + 1), then 1 / (0 + 1)
    [-0.75, -1.75]
    >>> path(make(ClientAdamW(eps=1, weight_decay=0.5)), 4.0, [3.0], lr=1.0)  # 4 - 4 / 2, then the step of Adam
    [1.25]
    """
    b1, b2, eps = section.beta1, section.beta2, section.eps
    shrinks_by = section.weight_decay if isinstance(section, ClientAdamW) else 0.0

    def init(params: Tensor) -> State:
        zeros = {name: params.new_zeros(params.shape) for name in ("m", "v", "scratch")}
        return {**zeros, "k": torch.zeros((*params.shape[:-1], 1), dtype=torch.int64)}

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        if shrinks_by:
            params.mul_(1 - lr * shrinks_by)
        k = int(state["k"].add_(1).flatten()[0])
        m = state["m"].mul_(b1).add_(gradient, alpha=1 - b1)
        v = state["v"].mul_(b2).addcmul_(gradient, gradient, value=1 - b2)
        denominator = torch.sqrt(v, out=state["scratch"]).div_(math.sqrt(1 - b2**k)).add_(eps)
        descend_ratio(params, m, denominator, lr / (1 - b1**k))

    return ClientOptimizer(init, step, adds_decay=isinstance(section, ClientAdamW))
