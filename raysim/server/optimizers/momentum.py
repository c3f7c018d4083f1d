"""Server momentum, which is FedAvgM: v <- b1 v + f g; x <- x - lr v.

`dampened`: v <- b1 v + (1 - b1) f g. State: v, starts at 0. The learning rate stays outside the velocity, so a schedule
acts on the whole step at once. f is FedGLAD's factor, 1 without it: the velocity is fed f g.

Source: Hsu et al. (2019); docs/algorithms.md section 1. FedGLAD's algorithm 1 prints the dampened form, its code runs
the other one; both are here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Factor
from raysim.models.vectors import fresh
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, State, Stepped


class Momentum(Section):
    """FedAvgM: server SGD with momentum."""

    MEANT: ClassVar[Mapping[str, str]] = {"momentum": "beta1", "beta": "beta1"}

    name: Literal["momentum"] = "momentum"
    lr: Factor = Field(1.0, description="Server learning rate.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the velocity.")
    dampened: bool = Field(False, description="Feed the velocity with (1 - beta1) g instead of g.")


def make(section: Momentum) -> ServerOptimizer:
    """Close the pair over beta1 and the form.

    >>> from raysim.server import path
    >>> path(make(Momentum(beta1=0.5)), 0.0, [1.0, 1.0], lr=1.0)  # v = 1, 3/2
    [-1.0, -2.5]
    """
    b1 = section.beta1
    share = 1 - b1 if section.dampened else 1.0

    def init(params: Tensor) -> State:
        return {"v": params.new_zeros(params.shape)}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        v = descent.fed(state["v"], b1, share)
        return Stepped(torch.sub(params, v, alpha=descent.lr, out=fresh(params)), {"v": v})

    return ServerOptimizer(init, step)
