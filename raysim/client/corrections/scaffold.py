"""SCAFFOLD: every local gradient is grad - c_i + c.

client  c_i <- the mean of its raw local gradients. For plain SGD that is option II, c_i - c + (x - y) / (tau_i lr),
        with its own tau_i and this round's lr, which is how it is computed there; under momentum, another optimizer,
        clipping or weight decay the gradients are summed.
server  c <- c + (M / N) mean(c_i+ - c_i); the model moves as without a correction.

State: c_i on clients, c on the server; all start at 0. Invariant: c = (1 / N) sum of c_i over all N clients.

Source: Karimireddy et al. (2020), algorithm 1, and Wang et al. (2021), equation 4; docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from raysim.client.corrections.correction import (
    ClientEnd,
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


class Scaffold(Section):
    """SCAFFOLD; it has no keys."""

    name: Literal["scaffold"] = "scaffold"


def make(section: Scaffold) -> Correction:
    """The mean gradient follows from the update where local steps are plain SGD; elsewhere it is summed.

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(Scaffold())  # y = 6, -4, so c_i = -6, 4 and c = -1; then y = 2.5, -1.5
    [1.0, 0.5]
    """

    def after(ended: ClientEnd) -> Tensor:
        if ended.gradient is not None:
            return ended.gradient
        return add_quotient(ended.state - ended.received["c"], ended.delta, -1, ended.tau * ended.lr)

    def settle(stepped: ServerStepped) -> ServerResult:
        c = torch.add(stepped.state["c"], stepped.changes, alpha=1 / stepped.population)
        return ServerResult(stepped.params, {"c": c})

    return Correction(
        ClientHalf(
            offset=lambda begins: begins.received["c"] - begins.state,
            after=after,
            sums_gradients=True,
            inverts_sgd=True,
        ),
        ServerHalf(lambda params: {"c": torch.zeros_like(params)}, settle),
        Exchange(lambda state, gradient: {"c": state["c"]}, sums_changes=True),
        Requires(server_sgd=True, weightings=("uniform",), aggregators=("mean", "fednova")),
    )
