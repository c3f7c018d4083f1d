"""Tilted losses (TERM): minimises log(sum p_i exp(t f_i)) / t. t = 0 is FedAvg; a large t minds the largest loss.

w_i = p_i exp(t f_i), normalised over the cohort. No state. t < 0 minds the smallest losses. The largest exponent is
subtracted, which changes no quotient.

Source: Li et al. (2021), "Tilted empirical risk minimization"; docs/algorithms.md section 4.
Departure: the sum is that of the cohort, where their stochastic algorithm keeps a running estimate of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from raysim.config.section import Section
from raysim.server.fairness.fairness import Fairness, FairWeight, StartLoss, State


class Tilt(Section):
    """Tilted losses (TERM): exponentials of the losses weigh the clients."""

    name: Literal["tilt"] = "tilt"
    t: float = Field(ge=-1e6, le=1e6, description="Tilt of the losses; 0 is FedAvg.")


def make(section: Tilt) -> Fairness:
    """Return the weights of tilted losses.

    >>> weights = make(Tilt(t=math.log(2))).weigh({}, [StartLoss(0, 1, 1.0), StartLoss(1, 3, 2.0)], 0.1)  # p 2^f / 4
    >>> [round(one.weight, 6) for one in weights]
    [0.5, 3.0]
    """

    def weigh(state: State, start_losses: Sequence[StartLoss], lr: float) -> list[FairWeight]:
        exponents = [section.t * one.loss for one in start_losses]
        largest = max(exponents, default=0.0)
        return [
            FairWeight(one.share * math.exp(exponent - largest))
            for one, exponent in zip(start_losses, exponents, strict=True)
        ]

    return Fairness(weigh)
