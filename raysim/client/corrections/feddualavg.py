"""FedDualAvg: clients and server average dual vectors z, and gradients are taken at the proximal point of z.

From z_0 = x_0 and E = 0, with the round's client rate lr and the server's lr_s:

client  z_i from z; at local step k = 0, 1, ...: w = prox(z_i, E + k lr); z_i <- z_i - lr grad f_i(w); it sends z_i - z
server  z <- z + lr_s sum p_i (z_i - z); E <- E + lr_s lr sum p_i tau_i; the model is prox(z, E)

prox(z, E) is raysim/client/proximal.py's: `Shrunk` for the penalty l1, `Bounded` for l2_ball.

State, of the server alone: z, starts at the initial model, and E, starts at 0. FedGLAD's factor scales the step of z,
and not E. `sparsity`: share of zeros among the numbers that are penalised.

Source: Yuan et al. (2021) and Wang et al. (2021), section 2.3; docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.client.corrections.correction import (
    ClientHalf,
    Correction,
    Exchange,
    ProximalPoint,
    Requires,
    ServerHalf,
    ServerResult,
    ServerStepped,
    Vectors,
)
from raysim.client.proximal import Bounded, Penalty, Shrunk, prox, spans
from raysim.config.section import Section
from raysim.config.values import Name, NonNegative, Positive
from raysim.models.layout import Layout

Groups = Annotated[tuple[Name, ...], Field(min_length=1, max_length=1_000)]
_GROUPS = "Patterns of the names of parameters that are penalised, such as *.weight."


class L1(Section):
    """FedDualAvg with the l1 norm: sparse models."""

    name: Literal["l1"] = Field("l1", alias="penalty")
    strength: NonNegative = Field(description="Factor of the norm.")
    groups: Groups = Field(("*",), description=_GROUPS)


class L2Ball(Section):
    """FedDualAvg with a bound of each tensor's norm."""

    name: Literal["l2_ball"] = Field("l2_ball", alias="penalty")
    radius: Positive = Field(description="Largest norm of a penalised tensor.")
    groups: Groups = Field(("*",), description=_GROUPS)


Composite = L1 | L2Ball


def unmatched_patterns(section: Composite, layout: Layout) -> list[str]:
    """Return the patterns that match no parameter."""
    return [pattern for pattern in section.groups if not spans(layout, (pattern,))]


def penalty_of(section: Composite) -> Penalty:
    """Return the penalty as a record of its own."""
    if isinstance(section, L1):
        return Shrunk(section.strength, section.groups)
    return Bounded(section.radius, section.groups)


def make(section: Composite) -> Correction:
    """Close the functions over the penalty; the server's state is z and E.

    >>> from raysim.testing.two_clients import two_clients
    >>> two_clients(L1(strength=1), x=4.0, local_steps=1)  # z = 1, E = 1 / 2; then z_i = 4.75, -3.5, E = 1
    [0.5, 0.0]
    >>> two_clients(L2Ball(radius=2), x=4.0, local_steps=1)  # w = 2, z_i = 7, -2; then z_i = 5.5, -3.5
    [2.0, 1.0]
    """
    penalty = penalty_of(section)

    def init(params: Tensor) -> Vectors:
        return {"z": params, "E": torch.zeros(1, dtype=torch.float64)}

    def settle(stepped: ServerStepped) -> ServerResult:
        elapsed = stepped.state["E"] + stepped.server_lr * stepped.lr * stepped.weighted_tau
        model = prox(penalty, stepped.params, float(elapsed), stepped.layout)
        return ServerResult(model, {"z": stepped.params, "E": elapsed})

    def figures(params: Tensor, layout: Layout) -> dict[str, float]:
        penalised = [params.narrow(0, *span) for span in spans(layout, penalty.groups)]
        zeros = sum(int((own == 0).sum()) for own in penalised)
        return {"sparsity": zeros / sum(own.numel() for own in penalised)}

    return Correction(
        ClientHalf(point=ProximalPoint(penalty, "E")),
        ServerHalf(init, settle, origin="z", figures=figures),
        Exchange(lambda state, gradient: {"E": state["E"]}),
        Requires(server_sgd=True, aggregators=("mean",)),
    )
