"""FedDualAvg: clients and server average dual vectors z, and gradients are taken at the proximal point of z.

From z_0 = x_0 and E = 0, with the round's client rate lr and the server's lr_s:

client  z_i from z; at local step k = 0, 1, ...: w = prox(z_i, E + k lr); z_i <- z_i - lr grad f_i(w); it sends z_i - z
server  z <- z + lr_s sum p_i (z_i - z); E <- E + lr_s lr sum p_i tau_i; the model is prox(z, E)

penalty    prox(z, E), of the tensors that `groups` match; others stay
l1         sign(z) max(|z| - strength E, 0)
l2_ball    z min(1, radius / |z|), per tensor

FedGLAD's factor scales the step of z, and not E. `sparsity`: share of zeros among the numbers that are penalised.

Source: Yuan et al. (2021) and Wang et al. (2021), section 2.3; docs/algorithms.md section 3.
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from raysim.client.corrections.correction import (
    ClientHalf,
    Correction,
    LocalPoint,
    Requires,
    Sent,
    ServerHalf,
    ServerResult,
    ServerStepped,
    Vectors,
)
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


@lru_cache(maxsize=16)
def spans(layout: Layout, groups: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return offset and length of every parameter that a pattern matches."""
    return tuple(
        (offset, math.prod(shape))
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True)
        if any(fnmatchcase(name, pattern) for pattern in groups)
    )


def unmatched(section: Composite, layout: Layout) -> list[str]:
    """Return the patterns that match no parameter."""
    return [pattern for pattern in section.groups if not spans(layout, (pattern,))]


def prox(section: Composite, z: Tensor, elapsed: float, layout: Layout) -> Tensor:
    """Return prox(z, E) of (P,), or of each row of a stack.

    Args:
        section: the penalty.
        z: dual vectors; not written to.
        elapsed: E, the sum of the learning rates so far.
        layout: the place of each parameter along the last axis.
    """
    made = z.clone()
    for offset, length in spans(layout, section.groups):
        own = made.narrow(-1, offset, length)
        if isinstance(section, L1):
            own.copy_(F.softshrink(own, section.strength * elapsed))
        else:
            # Of norm 0: infinity, clamped to 1.
            norm = torch.linalg.vector_norm(own, dim=-1, keepdim=True)
            own.mul_((section.radius / norm).clamp(max=1.0))
    return made


def make(section: Composite) -> Correction:
    """Close the functions over the penalty; the server's state is z and E."""

    def init(params: Tensor) -> Vectors:
        return {"z": params, "E": torch.zeros(1, dtype=torch.float64)}

    def point(at: LocalPoint) -> Tensor:
        return prox(section, at.iterate, float(at.sent["E"]) + at.step * at.lr, at.layout)

    def settle(stepped: ServerStepped) -> ServerResult:
        elapsed = stepped.state["E"] + stepped.server_lr * stepped.lr * stepped.weighted_tau
        model = prox(section, stepped.params, float(elapsed), stepped.layout)
        return ServerResult(model, {"z": stepped.params, "E": elapsed})

    def figures(params: Tensor, layout: Layout) -> dict[str, float]:
        penalised = [params.narrow(0, *span) for span in spans(layout, section.groups)]
        zeros = sum(int((own == 0).sum()) for own in penalised)
        return {"sparsity": zeros / sum(own.numel() for own in penalised)}

    return Correction(
        ClientHalf(point=point),
        ServerHalf(init, settle, origin="z", figures=figures),
        Sent(lambda state, gradient: {"E": state["E"]}),
        Requires(server_sgd=True, aggregators=("mean",)),
    )
