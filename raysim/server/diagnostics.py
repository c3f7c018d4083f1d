"""Measures a round from its sums; `[server.diagnostics]` turns on the costly measurements."""

from __future__ import annotations

import math
import sys
from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import Count
from raysim.models.vectors import squared_norm

MOST_WITH_COSINE = 4_000_000
"""Parameters up to which "auto" computes the mean cosine: beyond it, unit updates are a noticeable part of a round."""


class Diagnostics(Section):
    """Costly measurements of a round."""

    cosine: bool | Literal["auto"] = Field(
        "auto",
        description=(
            "Mean pairwise cosine similarity, for which workers also send a sum of unit updates, half as long as the "
            'sum of updates. "auto": of models of at most 4 million parameters.'
        ),
    )
    labels: bool = Field(
        False, description="Similarity of the cohort's label distribution to all clients', whose labels are read first."
    )
    probe: Count | None = Field(
        None,
        description=(
            "Rounds between probes, the first included: all training clients are trained from the round's model, "
            "for the true similarity index of all (`probe/gsi`), their mean norm (`mean_norm_all_clients`) and "
            "nothing else (Yang et al. 2023, App. C and O). It costs N / M rounds. Absent: none."
        ),
    )

    def sums_units(self, num_params: int) -> bool:
        """Return whether unit updates of so many numbers are summed, for the mean cosine."""
        return num_params <= MOST_WITH_COSINE if self.cosine == "auto" else self.cosine


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

    Source: Yang et al. (2023), appendix C, table 4. None where a fourth power overflows. 0 also where rounding of
    the sums may make all of it, as for equal norms: up to 2 (clients + 2) machine epsilons of the squared mean.

    >>> dispersion(1.0 + 3.0, 1.0 + 9.0, clients=2)
    0.5
    """
    if not math.isfinite(fourth_power_sum):
        return None
    mean = squared_norm_sum / clients
    variance = fourth_power_sum / clients - mean * mean
    # Each of the sums has at most a rounding for each client, and the mean is squared.
    is_rounding = variance <= 2 * (clients + 2) * sys.float_info.epsilon * mean * mean
    return 0.0 if is_rounding else math.sqrt(variance) / mean


def label_similarity(pooled: Tensor, population: Tensor) -> float:
    """Cosine of the cohort's pooled label counts with all clients': both shape (classes,).

    Source: Yang et al. (2023), equations 16 to 18.
    """
    a, b = pooled.double(), population.double()
    return float(a.dot(b) / (a.norm() * b.norm()))
