"""Server Yogi, which is FedYogi: m <- b1 m + (1 - b1) f g; v <- v - (1 - b2) g^2 sign(v - g^2), sign(0) = 0.

The step is Adam's (`adaptive_step`); the second moment moves by (1 - b2) g^2 at most, however far it is from g^2.

State: m starts at 0, v at v0 (0). eps stands outside the root. f is FedGLAD's factor, 1 without it: the numerator m is
fed f g, the second moment takes the unscaled g.

Sources: Zaheer et al. (2018); Reddi et al. (2021), algorithm 2; docs/algorithms.md section 1. Departure: the latter
ask for v0 >= eps^2; here it is a key, and 0 by default.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Factor, NonNegative
from raysim.models.vectors import fresh
from raysim.server.optimizers import adaptive_step
from raysim.server.optimizers.adaptive_step import BiasCorrection
from raysim.server.optimizers.optimizer import ServerOptimizer


class Yogi(Section):
    """FedYogi."""

    name: Literal["yogi"] = "yogi"
    lr: Factor = Field(0.01, description="Server learning rate.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.99, ge=0, lt=1, description="Decay of the second moment.")
    eps: NonNegative = Field(1e-3, description="Added to the root.")
    v0: NonNegative = Field(0.0, description="First value of the second moment, for every coordinate.")
    bias_correction: BiasCorrection = "none"


def make(section: Yogi) -> ServerOptimizer:
    """Close the pair over its constants.

    >>> from raysim.server import path
    >>> path(make(Yogi(beta1=0.5, beta2=0.75, eps=1, v0=0)), 0.0, [2.0], lr=1.0)  # m = 1, v = 1
    [-0.5]
    >>> path(make(Yogi(beta1=0, beta2=0.75, eps=0, v0=9)), 0.0, [0.0, 0.0], lr=1.0)  # v stays where g is 0
    [0.0, 0.0]
    """

    def second_moment(v: Tensor, g: Tensor) -> Tensor:
        squares = torch.square(g, out=fresh(v))
        return torch.sub(v, squares, out=fresh(v)).sign_().mul_(squares).mul_(-(1 - section.beta2)).add_(v)

    return adaptive_step.make(section, second_moment)
