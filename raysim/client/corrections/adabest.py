"""AdaBest: every local gradient is grad - h_i.

With g_i = x - y_i, thetabar = mean of y_i, rounds counted from 1:

client  h_i <- h_i / (t - t'_i) + mu g_i, t'_i = the round it last took part in
server  h <- beta (thetabar_prev - thetabar); what is broadcast is thetabar - h

State: h_i on clients, h and thetabar on the server; all start at 0, thetabar at the initial model.

h^t = sum_{s=1..t} beta^(t-s+1) gbar^s, gbar = x - thetabar: what is old fades, on both sides. beta = mu = 0 is FedAvg.
FedGLAD's f acts on gbar, and so on thetabar and h.

Source: Varno et al. (2022), algorithm 1; docs/algorithms.md section 3.
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


class AdaBest(Section):
    """AdaBest."""

    name: Literal["adabest"] = "adabest"
    mu: Factor = Field(0.02, description="Rate of a client's h_i.")
    beta: float = Field(ge=0, le=1, description="Decay of the server's h.")


def make(section: AdaBest) -> Correction:
    """Close the functions over mu and beta.

    >>> from raysim.testing.two_clients import two_clients
    >>> section = AdaBest(mu=0.5, beta=0.5)
    >>> two_clients(section, x=8.0, local_steps=1)  # y = 8, -4, h_i = 0, 6, h = 3; then y = 3.5, -1, h = 3 / 8
    [-1.0, 0.875]
    """

    def settle(stepped: ServerStepped) -> ServerResult:
        h = (stepped.state["average"] - stepped.params).mul_(section.beta)
        return ServerResult(stepped.params - h, {"h": h, "average": stepped.params})

    return Correction(
        ClientHalf(
            offset=lambda begins: -begins.state,
            after=lambda ended: (ended.state / ended.gap).sub_(ended.delta, alpha=section.mu),
        ),
        ServerHalf(lambda params: {"h": torch.zeros_like(params), "average": params}, settle, average="average"),
        requires=Requires(server_sgd=True, weightings=("uniform",), aggregators=("mean",)),
    )
