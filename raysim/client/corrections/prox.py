"""FedProx: every local gradient is grad + mu (y - x). No state. mu = 0 is FedAvg.

Source: Li et al. (2020), equation 2; docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from raysim.client.corrections.correction import ClientHalf, Correction
from raysim.config.section import Section
from raysim.config.values import Factor


class Prox(Section):
    """FedProx."""

    name: Literal["prox"] = "prox"
    mu: Factor = Field(description="Weight of the pull towards the received model.")


def make(section: Prox) -> Correction:
    """The pull, and nothing else."""
    return Correction(ClientHalf(pull=section.mu))
