"""q-FFL: minimises sum p_i f_i^(q + 1) / (q + 1), whose larger losses weigh more. q = 0 is FedAvg.

F_i = f_i + 1e-10, L = 1 / lr, lr the clients' of the round:

    g = -sum p_i F_i^q L h_i / sum p_i (q F_i^(q-1) L^2 |h_i|^2 + L F_i^q)
      = -sum w_i h_i / sum w_i (1 + c_i |h_i|^2),    w_i = p_i F_i^q,  c_i = q L / F_i

so that the server needs no learning rate of its own for each q. No state. The weights are divided by the largest F^q,
which changes no quotient.

Source: Li et al. (2020), "Fair resource allocation in federated learning", q-FedAvg;
docs/algorithms.md section 4. Departure: p_i, which is 1 / M by default, where the paper samples clients by p_i.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from raysim.config.section import Section
from raysim.errors import ExperimentError
from raysim.server.fairness.fairness import Fairness, FairWeight, StartLoss, State

SMALLEST = 1e-10
"""Added to every loss, as in the authors' code."""


class Qffl(Section):
    """q-FFL: losses to the power q weigh the clients."""

    name: Literal["qffl"] = "qffl"
    q: float = Field(ge=0, le=1_000, description="Power of the losses; 0 is FedAvg.")


def make(section: Qffl) -> Fairness:
    """Return q-FedAvg's step of the server.

    >>> weights = make(Qffl(q=1)).weigh({}, [StartLoss(0, 1, 1.0), StartLoss(1, 1, 4.0)], 0.5)  # F / 4, q / (F lr)
    >>> [(round(one.weight, 6), round(one.curvature, 6)) for one in weights]
    [(0.25, 2.0), (1.0, 0.5)]
    """
    q = section.q

    def weigh(state: State, start_losses: Sequence[StartLoss], lr: float) -> list[FairWeight]:
        if q == 0:
            return [FairWeight(one.share) for one in start_losses]
        if (least := min((one.loss for one in start_losses), default=0.0)) < 0:
            raise ExperimentError(
                f"server.fairness.name = 'qffl' takes powers of the clients' losses, so that none may be negative, "
                f"but a client has the loss {least:g}: take 'tilt'."
            )
        big = [one.loss + SMALLEST for one in start_losses]
        largest = max(big, default=1.0)
        return [
            FairWeight(one.share * (loss / largest) ** q, _curvature(q, loss * lr))
            for one, loss in zip(start_losses, big, strict=True)
        ]

    return Fairness(weigh, uniform_by_default=True, server_sgd=True, divides_by_lr=q > 0)


def _curvature(q: float, divisor: float) -> float:
    """Return q / (F_i lr); 0 where that is no number: a rate that has decayed so far leaves h = 0."""
    curvature = q / divisor if divisor else math.inf
    return curvature if math.isfinite(curvature) else 0.0
