"""Server Adam, which is FedAdam: m <- b1 m + (1 - b1) f g; v <- b2 v + (1 - b2) g^2; step as in `adaptive_step`.

State: m starts at 0, v at v0 (0). eps stands outside the root. f is FedGLAD's factor, 1 without it: the numerator m is
fed f g, the second moment takes the unscaled g.

Source: Reddi et al. (2021), algorithm 2; docs/algorithms.md section 1. Departure: they ask for v0 >= eps^2; here it is
a key, and 0 by default.
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


class Adam(Section):
    """FedAdam."""

    name: Literal["adam"] = "adam"
    lr: Factor = Field(0.01, description="Server learning rate.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay of the first moment.")
    beta2: float = Field(0.99, ge=0, lt=1, description="Decay of the second moment.")
    eps: NonNegative = Field(1e-3, description="Added to the root.")
    v0: NonNegative = Field(0.0, description="First value of the second moment, for every coordinate.")
    bias_correction: BiasCorrection = "none"


def make(section: Adam) -> ServerOptimizer:
    """Close the pair over its constants.

    >>> from raysim.server import path
    >>> path(make(Adam(beta1=0.5, beta2=0.75, eps=1)), 0.0, [2.0], lr=1.0)  # m = 1, v = 1
    [-0.5]
    >>> path(make(Adam(eps=0, bias_correction="kingma")), 0.0, [2.0], lr=0.5)  # a first step of lr
    [-0.5]
    """

    def second_moment(v: Tensor, g: Tensor) -> Tensor:
        return torch.mul(v, section.beta2, out=fresh(v)).addcmul_(g, g, value=1 - section.beta2)

    return adaptive_step.make(section, second_moment)
