"""Server LARS, which is FedLARS. Per parameter group P:

m <- b1 m + (1 - b1) (g + wd x); r = |x| / (|m| + eps), r = 1 if |x| = 0 or |m| = 0; x <- x - lr f r m.

State: m, starts at 0. eps stands only in the ratio; the ratio is not clamped and no group is excluded. f is FedGLAD's
factor: the step is multiplied by it, because a factor inside m would cancel in r m.

Source: Charles et al. (2021), algorithm 3; docs/algorithms.md section 1.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from raysim.section import Section
from raysim.server.fresh import fresh
from raysim.server.norms import group_norms
from raysim.server.optimizer import Descent, ServerOptimizer, State, Stepped


class Lars(Section):
    """lr: the server learning rate.
    beta1: what the first moment keeps of itself.
    eps: added to the norm in the ratio.
    weight_decay: wd.
    """

    name: Literal["lars"] = "lars"
    lr: NonNegativeFloat = 0.01
    beta1: float = Field(0.9, ge=0, lt=1)
    eps: NonNegativeFloat = 1e-3
    weight_decay: NonNegativeFloat = 0.0


def make(section: Lars) -> ServerOptimizer:
    """Close the pair over its constants."""
    b1 = section.beta1

    def init(params: Tensor) -> State:
        return {"m": params.new_zeros(params.shape)}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        layout, metrics = descent.layout, {}
        m = torch.mul(state["m"], b1, out=fresh(params)).add_(descent.g, alpha=1 - b1)
        if section.weight_decay:
            m.add_(params, alpha=(1 - b1) * section.weight_decay)
        moved = fresh(params).copy_(params)
        norms = zip(group_norms(layout, params), group_norms(layout, m), strict=True)
        groups = zip(layout.names, layout.pieces(moved), layout.pieces(m), norms, strict=True)
        for index, (name, x_group, m_group, (x_norm, m_norm)) in enumerate(groups):
            ratio = x_norm / (m_norm + section.eps) if x_norm and m_norm else 1.0
            x_group.sub_(m_group, alpha=descent.lr * descent.factor(index) * ratio)
            metrics[f"trust_ratio/{name}"] = ratio
        return Stepped(moved, {"m": m}, metrics)

    return ServerOptimizer(init, step)
