"""Normalized FedAvg: x <- x - lr f g / |g|, with the norm over the whole model; no step where |g| = 0.

State: none. The learning rate is the length of every step. f is FedGLAD's factor: the norm is of the unscaled g.

Source: Charles et al. (2021), section 5.4; docs/algorithms.md section 1.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Factor
from raysim.models.vectors import squared_norm
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, State, Stepped


class Normalized(Section):
    """A step of constant length."""

    name: Literal["normalized"] = "normalized"
    lr: Factor = Field(0.1, description="Length of the step.")


def make(section: Normalized) -> ServerOptimizer:
    """The pair; the learning rate arrives with each descent.

    >>> from raysim.server import path
    >>> path(make(Normalized()), 2.0, [-7.0, 0.0], lr=0.5)
    [2.5, 2.5]
    """

    def init(params: Tensor) -> State:
        return {}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        norm = math.sqrt(squared_norm(descent.g))
        return Stepped(descent.fed(params, 1.0, -descent.lr / norm) if norm else params, state)

    return ServerOptimizer(init, step)
