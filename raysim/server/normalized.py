"""Normalized FedAvg: x <- x - lr f g / |g|, with the norm over the whole model; no step where |g| = 0.

State: none. The learning rate is the length of every step. f is FedGLAD's factor: the norm is of the unscaled g.

Source: Charles et al. (2021), section 5.4; docs/algorithms.md section 1.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from raysim.section import Section
from raysim.server.norms import squared_norm
from raysim.server.optimizer import Descent, ServerOptimizer, State, Stepped


class Normalized(Section):
    """lr: the length of the step."""

    name: Literal["normalized"] = "normalized"
    lr: NonNegativeFloat = 0.1


def make(section: Normalized) -> ServerOptimizer:
    """The pair; the learning rate arrives with each descent."""

    def init(params: Tensor) -> State:
        return {}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        norm = math.sqrt(squared_norm(descent.g))
        return Stepped(descent.fed(params, 1.0, -descent.lr / norm) if norm else params, state)

    return ServerOptimizer(init, step)
