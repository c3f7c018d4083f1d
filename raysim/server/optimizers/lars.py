"""Server LARS, which is FedLARS, and the trust ratio that it shares with LAMB.

Per parameter group P:

m <- b1 m + (1 - b1) (g + wd x); r = |x| / (|m| + eps), r = 1 if |x| = 0 or |m| = 0; x <- x - lr f r m.

State: m, starts at 0. eps stands only in the ratio; the ratio is not clamped and no group is excluded. f is FedGLAD's
factor: the step is multiplied by it, because a factor inside m would cancel in r m.

Source: Charles et al. (2021), section 5.2 and table 3, after You et al. (2017); docs/algorithms.md section 1. They
print beta1 and eps, but no equation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Factor, NonNegative
from raysim.models.vectors import add_quotient, fresh, group_norms
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, State, Stepped


class Lars(Section):
    """FedLARS: LARS on the server."""

    name: Literal["lars"] = "lars"
    lr: Factor = Field(0.01, description="Server learning rate.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    eps: NonNegative = Field(1e-3, description="Added to the norm in the ratio.")
    weight_decay: Factor = Field(0.0, description="Weight decay, wd.")


class Trust(NamedTuple):
    """lengths: lr f_P r_P of each parameter group, by which its direction is multiplied. ratios: r_P, as metrics."""

    lengths: tuple[float, ...]
    ratios: Mapping[str, float]


def trust(x: Tensor, u: Tensor, descent: Descent, eps: float = 0.0) -> Trust:
    """Return how far the parameter groups go along u: r_P = |x_P| / (|u_P| + eps), 1 if |x_P| = 0 or |u_P| = 0."""
    norms = zip(group_norms(descent.layout, x), group_norms(descent.layout, u), strict=True)
    ratios = [x_norm / (u_norm + eps) if x_norm and u_norm else 1.0 for x_norm, u_norm in norms]
    lengths = tuple(descent.lr * descent.factor(group) * ratio for group, ratio in enumerate(ratios))
    return Trust(lengths, {f"trust_ratio/{name}": r for name, r in zip(descent.layout.names, ratios, strict=True)})


def make(section: Lars) -> ServerOptimizer:
    """Close the pair over its constants.

    >>> from raysim.server import path
    >>> path(make(Lars(beta1=0, eps=0)), 4.0, [100.0, -0.1], lr=0.5)  # a step of lr |x|
    [2.0, 3.0]
    """
    b1 = section.beta1

    def init(params: Tensor) -> State:
        return {"m": params.new_zeros(params.shape)}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        m = torch.mul(state["m"], b1, out=fresh(params)).add_(descent.g, alpha=1 - b1)
        if section.weight_decay:
            m.add_(params, alpha=(1 - b1) * section.weight_decay)
        lengths, ratios = trust(params, m, descent, section.eps)
        after = fresh(params).copy_(params)
        for piece, along, length in zip(*map(descent.layout.pieces, (after, m)), lengths, strict=True):
            add_quotient(piece, along, -length, 1.0)
        return Stepped(after, {"m": m}, ratios)

    return ServerOptimizer(init, step)
