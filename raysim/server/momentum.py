"""Server momentum, which is FedAvgM: v <- b1 v + f g; x <- x - lr v.

`dampened`: v <- b1 v + (1 - b1) f g. State: v, starts at 0. The learning rate stays outside the velocity, so a schedule
acts on the whole step at once. f is FedGLAD's factor, 1 without it: the velocity is fed f g.

Source: Hsu et al. (2019); docs/algorithms.md section 1. FedGLAD's algorithm 1 prints the dampened form, its code runs
the other one; both are here.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from raysim.section import Section
from raysim.server.fresh import fresh
from raysim.server.optimizer import Descent, ServerOptimizer, State, Stepped


class Momentum(Section):
    """lr: the server learning rate.
    beta1: what the velocity keeps of itself.
    dampened: feeds the velocity (1 - beta1) g instead of g.
    """

    name: Literal["momentum"] = "momentum"
    lr: NonNegativeFloat = 1.0
    beta1: float = Field(0.9, ge=0, lt=1)
    dampened: bool = False


def make(section: Momentum) -> ServerOptimizer:
    """Close the pair over beta1 and the form."""
    b1 = section.beta1
    share = 1 - b1 if section.dampened else 1.0

    def init(params: Tensor) -> State:
        return {"v": params.new_zeros(params.shape)}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        v = descent.fed(state["v"], b1, share)
        return Stepped(torch.sub(params, v, alpha=descent.lr, out=fresh(params)), {"v": v})

    return ServerOptimizer(init, step)
