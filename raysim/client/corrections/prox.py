"""FedProx: every local gradient is grad + mu (y - x). mu = 0 is FedAvg.

State: none.

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
    """The pull, and nothing else.

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(Prox(mu=1), x=4.0, num_rounds=1)  # y = 6, then 6; -4, then 0
    [3.0]
    """
    return Correction(ClientHalf(pull=section.mu))
