"""FedDyn: every local gradient is grad - h_i - mu (x - y).

With g_i = x - y_i, thetabar = mean of y_i and gbar = x - thetabar:

client  h_i <- h_i + mu g_i
server  h <- h + (M / N) gbar; what is broadcast is theta = thetabar - h

State: h_i on clients, h and thetabar on the server; all start at 0, thetabar at the initial model.

A client whose local training converged has h_i = its gradient at y_i: the first-order condition. FedGLAD's f acts on
gbar, and so on thetabar and h.

Source: Acar et al. (2021), algorithm 1, in the notation of Varno et al. (2022); docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from raysim.client.corrections.correction import (
    ClientHalf,
    Correction,
    Requires,
    ServerHalf,
    ServerResult,
    ServerStepped,
)
from raysim.config.section import Section
from raysim.config.values import Factor


class FedDyn(Section):
    """FedDyn."""

    name: Literal["feddyn"] = "feddyn"
    mu: Factor = Field(description="Weight of the pull towards the received model, and rate of h_i (0: FedAvg).")


def make(section: FedDyn) -> Correction:
    """Close the functions over mu.

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(FedDyn(mu=1))  # y = 4, -2, h_i = -4, 2, h = -1; then y = 3, -1 / 2, h = -1 / 4
    [2.0, 1.5]
    """

    def settle(stepped: ServerStepped) -> ServerResult:
        h = torch.add(stepped.state["h"], stepped.g, alpha=stepped.clients / stepped.population)
        return ServerResult(stepped.params - h, {"h": h, "average": stepped.params})

    return Correction(
        ClientHalf(
            pull=section.mu,
            offset=lambda begins: -begins.state,
            after=lambda ended: torch.sub(ended.state, ended.delta, alpha=section.mu),
        ),
        ServerHalf(lambda params: {"h": torch.zeros_like(params), "average": params}, settle, average="average"),
        requires=Requires(server_sgd=True, weightings=("uniform",), aggregators=("mean",)),
    )
