"""Measures a round from its sums; `[server.diagnostics]` turns on the costly measurements."""

from __future__ import annotations

import math

from pydantic import Field, PositiveInt
from torch import Tensor

from raysim.config.section import Section
from raysim.server.vectors import squared_norm


class Diagnostics(Section):
    """Costly measurements of a round."""

    cosine: bool = Field(
        True, description="Mean pairwise cosine similarity; its sum of unit updates doubles what workers send back."
    )
    labels: bool = Field(
        False, description="Similarity of the cohort's label distribution to all clients', whose labels are read first."
    )
    probe: PositiveInt | None = Field(
        None,
        description=(
            "Rounds between probes, the first included: all training clients are trained from the round's model, "
            "for the true similarity index of all (`probe/gsi`) and nothing else (Yang et al. 2023, App. O). It "
            "costs N / M rounds. Absent: none."
        ),
    )


def mean_cosine_similarity(unit_sum: Tensor, moving: int, clients: int) -> float | None:
    """Mean over unordered pairs of clients: (|sum u_i|^2 - Z) / (M (M - 1)); a pair with a zero update counts 0.

    Args:
        unit_sum: sum of the unit vectors of the updates that are not zero.
        moving: Z, their number.
        clients: M.

    Source: Charles et al. (2021), equation 5. None where M < 2: there is no pair.
    """
    if clients < 2:
        return None
    return (squared_norm(unit_sum) - moving) / (clients * (clients - 1))


def dispersion(squared_norm_sum: float, fourth_power_sum: float, clients: int) -> float | None:
    """Return the population standard deviation of the updates' squared norms over their mean; 0 if all are 0.

    Source: Yang et al. (2023), appendix C, table 4. None where a fourth power overflows.

    >>> dispersion(1.0 + 3.0, 1.0 + 9.0, clients=2)
    0.5
    """
    if not math.isfinite(fourth_power_sum):
        return None
    mean = squared_norm_sum / clients
    variance = max(0.0, fourth_power_sum / clients - mean * mean)
    return math.sqrt(variance) / mean if mean else 0.0


def label_similarity(pooled: Tensor, population: Tensor) -> float:
    """Cosine of the cohort's pooled label counts with all clients': both shape (classes,).

    Source: Yang et al. (2023), equations 16 to 18.
    """
    a, b = pooled.double(), population.double()
    return float(a.dot(b) / (a.norm() * b.norm()))
