"""FedPD: every local gradient is grad + lambda_i + mu (y - x), and local training starts at the client's own y_i.

client  y from y_i by local steps; lambda_i <- lambda_i + mu (y - x); y_i <- y; it sends y_i + lambda_i / mu - x
server  x <- the clients' mean of y_i + lambda_i / mu

State, of clients alone: lambda_i starts at 0, y_i at the initial model as the client receives it: compressed, under
`server.compression` of the model.

Every client takes part in every round. Started at x instead of y_i it is FedDyn with h_i = -lambda_i. FedGLAD's f acts
on the mean of what is sent, and not on lambda_i.

Source: Zhang et al. (2020), algorithm 1 with oracle I, and Wang et al. (2021), equation 8; docs/algorithms.md section
3. Departures: every round communicates, where the paper skips rounds at random. A client whose updates were all
rejected begins at the model that it receives.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.client.corrections.correction import ClientEnd, ClientHalf, ClientStart, Correction, Requires
from raysim.config.section import Section
from raysim.config.values import Positive


class FedPd(Section):
    """FedPD."""

    name: Literal["fedpd"] = "fedpd"
    mu: Positive = Field(description="Weight of the pull towards the received model, and rate of lambda_i; > 0.")


def make(section: FedPd) -> Correction:
    """Close the functions over mu; a client's state is (lambda_i, y_i).

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(FedPd(mu=1))  # y_i + lambda_i = 4 + 4, -2 - 2; then 3 + 5, -1.5 - 5.5
    [2.0, 0.5]
    """
    mu = section.mu

    def begin(begins: ClientStart) -> Tensor:
        return begins.state[1]

    def upload(ended: ClientEnd) -> Tensor:
        # y + (lambda_i + mu (y - x)) / mu - x.
        return (ended.delta * 2).add_(ended.state[0], alpha=1 / mu)

    def after(ended: ClientEnd) -> Tensor:
        dual = torch.add(ended.state[0], ended.delta, alpha=mu)
        return torch.stack([dual, ended.params + ended.delta])

    return Correction(
        ClientHalf(
            pull=mu,
            offset=lambda begins: begins.state[0],
            after=after,
            vectors=2,
            init=lambda params: torch.stack([torch.zeros_like(params), params]),
            begin=begin,
            upload=upload,
        ),
        requires=Requires(
            server_sgd=True, weightings=("uniform",), aggregators=("mean",), unit_lr=True, every_client=True
        ),
    )
