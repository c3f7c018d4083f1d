"""FedDANE: every local gradient is grad + gbar - grad f_i(x) + mu (y - x), gbar the cohort's mean of grad f_i(x).

It is weighted as the clients' updates are, and taken in a pass over the cohort before local training. State: none.

Source: Li et al. (2019), algorithm 2; docs/algorithms.md section 3. Departures: gbar is of the cohort that trains,
where the paper draws a second one. A client takes grad f_i(x) again when it trains, rather than keep it in between.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.client.corrections.correction import ClientHalf, ClientStart, Correction, Exchange, Requires, Vectors
from raysim.config.section import Section
from raysim.config.values import Factor


class FedDane(Section):
    """FedDANE."""

    name: Literal["feddane"] = "feddane"
    mu: Factor = Field(description="Weight of the pull towards the received model.")


def make(section: FedDane) -> Correction:
    """The pull and the difference of gradients.

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(FedDane(mu=1), x=4.0, num_rounds=1)  # gbar = 6; y = 1, then 1; 1, then 2.5
    [1.75]
    """

    def offset(begins: ClientStart) -> Tensor:
        assert begins.gradient is not None
        return begins.received["gbar"] - begins.gradient

    def down(state: Vectors, gradient: Tensor | None) -> Vectors:
        assert gradient is not None
        return {"gbar": gradient}

    return Correction(
        ClientHalf(pull=section.mu, offset=offset, own_gradient=True),
        exchange=Exchange(down=down, full_gradients=True),
        requires=Requires(weightings=("examples", "uniform"), aggregators=("mean", "fednova")),
    )
