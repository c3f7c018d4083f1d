"""Server Adagrad, which is FedAdagrad: G <- G + g^2; x <- x - lr f g / (sqrt(G) + eps).

With beta1 > 0 the numerator is m <- b1 m + (1 - b1) f g. State: G, starts at v0 (0); m where beta1 > 0, starts at 0.
eps stands outside the root. f is FedGLAD's factor: it scales the numerator, and G takes the unscaled g.

Source: Reddi et al. (2021), algorithm 2; docs/algorithms.md section 1. Departure: with eps = 0, 0 / 0 is 0.
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
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, State, Stepped


class Adagrad(Section):
    """FedAdagrad."""

    name: Literal["adagrad"] = "adagrad"
    lr: Factor = Field(0.01, description="Server learning rate.")
    beta1: float = Field(0.0, ge=0, lt=1, description="Decay of the first moment.")
    eps: NonNegative = Field(1e-3, description="Added to the root.")
    v0: NonNegative = Field(0.0, description="First value of the accumulator, for every coordinate.")


def make(section: Adagrad) -> ServerOptimizer:
    """Close the pair over beta1, eps and v0.

    >>> from raysim.server import path
    >>> path(make(Adagrad(eps=0)), 0.0, [3.0, 4.0], lr=1.0)  # G = 9, 25
    [-1.0, -1.8]
    """
    b1 = section.beta1

    def init(params: Tensor) -> State:
        accumulated = {"G": params.new_full(params.shape, section.v0)}
        return accumulated | {"m": params.new_zeros(params.shape)} if b1 else accumulated

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        g = descent.g
        after: dict[str, Tensor] = {"G": torch.addcmul(state["G"], g, g, out=fresh(g))}
        moved = denominator(after["G"], section.eps)
        if b1:
            after["m"] = descent.fed(state["m"], b1, 1 - b1)
            torch.div(after["m"], moved, out=moved).mul_(-descent.lr)
        else:
            descent.rescale(torch.div(g, moved, out=moved), -descent.lr)
        return Stepped(moved.add_(params), after)

    return ServerOptimizer(init, step)
