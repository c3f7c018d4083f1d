"""Server Adam, which is FedAdam: m <- b1 m + (1 - b1) f g; v <- b2 v + (1 - b2) g^2; step as in `adaptive_step`.

State: m starts at 0, v at v0 (0). eps stands outside the root. f is FedGLAD's factor, 1 without it: the numerator m is
fed f g, the second moment takes the unscaled g.

Source: Reddi et al. (2021), algorithm 2; docs/algorithms.md section 1. Departure: they ask for v0 >= eps^2; here it is
a key, and 0 by default.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from raysim.section import Section
from raysim.server import adaptive_step
from raysim.server.adaptive_step import BiasCorrection
from raysim.server.fresh import fresh
from raysim.server.optimizer import ServerOptimizer


class Adam(Section):
    """lr: the server learning rate.
    beta1: what the first moment keeps of itself.
    beta2: what the second moment keeps of itself.
    eps: added to the root.
    v0: the second moment's first value, for every coordinate.
    bias_correction: which of three algorithms, see `adaptive_step`.
    """

    name: Literal["adam"] = "adam"
    lr: NonNegativeFloat = 0.01
    beta1: float = Field(0.9, ge=0, lt=1)
    beta2: float = Field(0.99, ge=0, lt=1)
    eps: NonNegativeFloat = 1e-3
    v0: NonNegativeFloat = 0.0
    bias_correction: BiasCorrection = "none"


def make(section: Adam) -> ServerOptimizer:
    """Close the pair over its constants."""

    def second_moment(v: Tensor, g: Tensor) -> Tensor:
        return torch.mul(v, section.beta2, out=fresh(v)).addcmul_(g, g, value=1 - section.beta2)

    return adaptive_step.make(section, second_moment)
