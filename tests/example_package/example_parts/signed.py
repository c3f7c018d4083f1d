"""Steps against the sign of the gradient.

Source: Bernstein et al. (2018), algorithm 1.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

import raysim
from raysim.client.optimizers.optimizer import Rate, State, descend


class Signed(raysim.Section):
    """Sign descent."""

    name: Literal["signed"] = "signed"
    lr: float = Field(0.01, ge=0, description="Learning rate of the first round.")
    weight_decay: float = Field(0.0, ge=0, description="Factor of the weights that are added to the gradient.")


def make(section: Signed) -> raysim.ClientOptimizer:
    """Return the pair of functions."""

    def step(params: Tensor, gradient: Tensor, state: State, lr: Rate) -> None:
        descend(params, gradient.sign(), lr)

    return raysim.ClientOptimizer(lambda params: {}, step)


PART = raysim.Part("client_optimizer", "signed", Signed, make)
