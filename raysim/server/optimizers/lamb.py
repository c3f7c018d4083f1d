"""Server LAMB, which is FedLamb.

Per parameter group P, with k = 1 in the first round:

m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; u = (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps) + wd x;
r = |x| / |u|, r = 1 if |x| = 0 or |u| = 0; x <- x - lr f r u.

State: m and v, start at 0. eps stands outside the root and only in u. f is FedGLAD's factor: the step is multiplied by
it, because a factor inside m would cancel in r u.

Source: Charles et al. (2021), section 5.2 and table 3, after You et al. (2020); docs/algorithms.md section 1. They
print beta1, beta2 and eps, but no equation. Departure: with eps = 0, 0 / 0 is 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Factor, NonNegative
from raysim.models.vectors import fresh
from raysim.server.optimizers.adaptive_step import denominator
from raysim.server.optimizers.lars import trust
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, State, Stepped


class Lamb(Section):
    """FedLamb: LAMB on the server."""

    name: Literal["lamb"] = "lamb"
    lr: Factor = Field(0.01, description="Server learning rate.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.99, ge=0, lt=1, description="Decay of the second moment.")
    eps: NonNegative = Field(1e-3, description="Added to the root.")
    weight_decay: Factor = Field(0.0, description="Weight decay, wd.")


def make(section: Lamb) -> ServerOptimizer:
    """Close the pair over its constants.

    >>> from raysim.server import path
    >>> path(make(Lamb()), 8.0, [3.0, 3.0], lr=0.5)  # a step of lr |x|
    [4.0, 2.0]
    """
    b1, b2 = section.beta1, section.beta2

    def init(params: Tensor) -> State:
        return {"m": params.new_zeros(params.shape), "v": params.new_zeros(params.shape)}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        g = descent.g
        m = torch.mul(state["m"], b1, out=fresh(g)).add_(g, alpha=1 - b1)
        v = torch.mul(state["v"], b2, out=fresh(g)).addcmul_(g, g, value=1 - b2)
        u = denominator(v, section.eps, 1 - b2**descent.k)
        torch.div(m, u, out=u).div_(1 - b1**descent.k)
        if section.weight_decay:
            u.add_(params, alpha=section.weight_decay)
        lengths, ratios = trust(params, u, descent)
        for piece, length in zip(descent.layout.pieces(u), lengths, strict=True):
            piece.mul_(-length)
        return Stepped(u.add_(params), {"m": m, "v": v}, ratios)

    return ServerOptimizer(init, step)
