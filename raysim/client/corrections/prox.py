"""FedProx: every local gradient is grad + mu (y - x). No state. mu = 0 is FedAvg.

Source: Li et al. (2020), equation 2; docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat

from raysim.client.corrections.correction import Correction
from raysim.section import Section


class Prox(Section):
    """mu: weighs the pull towards the model that was received."""

    name: Literal["prox"] = "prox"
    mu: NonNegativeFloat


def make(section: Prox) -> Correction:
    """The pull, and nothing else."""
    return Correction(pull=section.mu)
