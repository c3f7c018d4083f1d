"""Takes a step whose rate falls to its half after every so many rounds."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

import raysim
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, State, Stepped


class Halving(raysim.Section):
    """Gradient descent with a rate that falls."""

    name: Literal["halving"] = "halving"
    lr: float = Field(1.0, ge=0, description="Server learning rate of the first round.")
    every: int = Field(2, ge=1, description="Rounds between halvings.")


def make(section: Halving) -> ServerOptimizer:
    """Return the pair of functions."""

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        rate = descent.lr * 0.5 ** ((descent.k - 1) // section.every)
        return Stepped(params - rate * descent.fg, state)

    return ServerOptimizer(lambda params: {}, step)


PART = raysim.Part("server_optimizer", "halving", Halving, make)
