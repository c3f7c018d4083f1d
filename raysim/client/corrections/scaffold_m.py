"""SCAFFOLD as AdaBest's authors write it: every local gradient is grad - h_i + h.

With g_i = x - y_i, gbar = x - mean of y_i, K local steps of every client:

client  h_i <- h_i - h + g_i / (K lr)
server  h <- d h + M / (K lr N) gbar,   d = (N - 1) / N as printed, (N - M) / N with `exact`

State: h_i on clients, h on the server; all start at 0. With the exact factor h is SCAFFOLD's c.

Source: Varno et al. (2022), algorithm 2;
docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field

from raysim.client.corrections.correction import (
    ClientHalf,
    Correction,
    Exchange,
    Requires,
    ServerHalf,
    ServerResult,
    ServerStepped,
)
from raysim.config.section import Section
from raysim.models.vectors import add_quotient


class ScaffoldM(Section):
    """SCAFFOLD-M."""

    name: Literal["scaffold_m"] = "scaffold_m"
    exact: bool = Field(
        False, description="Use the factor that keeps h the mean of all h_i, in place of the printed one."
    )


def make(section: ScaffoldM) -> Correction:
    """Close the functions over the factor.

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(ScaffoldM(), num_rounds=3)  # h = -1, 0: -1 / 2 + 1 / 2; h_i = -6, 4, then -6.5, 7.5
    [1.0, 0.5, 0.5]
    >>> two_clients(ScaffoldM(exact=True), num_rounds=3)  # h = -1, 1 / 2, as the mean of h_i
    [1.0, 0.5, 0.1875]
    """

    def settle(stepped: ServerStepped) -> ServerResult:
        population = stepped.population
        gone = stepped.clients if section.exact else 1
        h = stepped.state["h"] * ((population - gone) / population)
        gradients = stepped.tau * stepped.lr * population
        return ServerResult(stepped.params, {"h": add_quotient(h, stepped.g, stepped.clients, gradients)})

    return Correction(
        ClientHalf(
            offset=lambda begins: begins.received["h"] - begins.state,
            after=lambda ended: add_quotient(ended.state - ended.received["h"], ended.delta, -1, ended.tau * ended.lr),
            inverts_sgd=True,
        ),
        ServerHalf(lambda params: {"h": torch.zeros_like(params)}, settle),
        Exchange(lambda state, gradient: {"h": state["h"]}),
        Requires(server_sgd=True, weightings=("uniform",), aggregators=("mean",), equal_steps=True),
    )
