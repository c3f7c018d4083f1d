"""Server LAMB, which is FedLamb. Per parameter group P, with k = 1 in the first round:

m <- b1 m + (1 - b1) g; v <- b2 v + (1 - b2) g^2; u = (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps) + wd x;
r = |x| / |u|, r = 1 if |x| = 0 or |u| = 0; x <- x - lr f r u.

State: m and v, start at 0. eps stands outside the root and only in u. f is FedGLAD's factor: the step is multiplied by
it, because a factor inside m would cancel in r u.

Source: Charles et al. (2021), algorithm 4; docs/algorithms.md section 1. Departure: with eps = 0, 0 / 0 is 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from raysim.section import Section
from raysim.server.adaptive_step import denominator
from raysim.server.fresh import fresh
from raysim.server.norms import group_norms
from raysim.server.optimizer import Descent, ServerOptimizer, State, Stepped


class Lamb(Section):
    """lr: the server learning rate.
    beta1: what the first moment keeps of itself.
    beta2: what the second moment keeps of itself.
    eps: added to the root.
    weight_decay: wd.
    """

    name: Literal["lamb"] = "lamb"
    lr: NonNegativeFloat = 0.01
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    eps: NonNegativeFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.0


def make(section: Lamb) -> ServerOptimizer:
    """Close the pair over its constants."""
    b1, b2 = section.beta1, section.beta2

    def init(params: Tensor) -> State:
        return {"m": params.new_zeros(params.shape), "v": params.new_zeros(params.shape)}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        layout, g, metrics = descent.layout, descent.g, {}
        m = torch.mul(state["m"], b1, out=fresh(g)).add_(g, alpha=1 - b1)
        v = torch.mul(state["v"], b2, out=fresh(g)).addcmul_(g, g, value=1 - b2)
        u = denominator(v, section.eps, 1 - b2**descent.k)
        torch.div(m, u, out=u).div_(1 - b1**descent.k)
        if section.weight_decay:
            u.add_(params, alpha=section.weight_decay)
        norms = zip(group_norms(layout, params), group_norms(layout, u), strict=True)
        for index, (name, u_group, (x_norm, u_norm)) in enumerate(
            zip(layout.names, layout.pieces(u), norms, strict=True)
        ):
            ratio = x_norm / u_norm if x_norm and u_norm else 1.0
            u_group.mul_(-descent.lr * descent.factor(index) * ratio)
            metrics[f"trust_ratio/{name}"] = ratio
        return Stepped(u.add_(params), {"m": m, "v": v}, metrics)

    return ServerOptimizer(init, step)
