"""AdaBest: every local gradient is grad - h_i. With g_i = x - y_i, thetabar = mean of y_i, rounds counted from 1:

client  h_i <- h_i / (t - t'_i) + mu g_i, t'_i = the round it last took part in
server  h <- beta (thetabar_prev - thetabar); what is broadcast is thetabar - h

State: all start at 0, thetabar at the initial model. h^t = sum_{s=1..t} beta^(t-s+1) gbar^s, gbar = x - thetabar: what
is old fades, on both sides. beta = mu = 0 is FedAvg. FedGLAD's f acts on gbar, and so on thetabar and h.

Source: Varno et al. (2022), algorithm 1; docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from raysim.client.corrections.correction import Begins, Correction, Ended, Settled, Stepped, Vectors
from raysim.section import Section


class AdaBest(Section):
    """mu: what a client learns of its h_i in a round. beta: how slowly the server's h fades."""

    name: Literal["adabest"] = "adabest"
    mu: NonNegativeFloat = 0.02
    beta: float = Field(ge=0, le=1)


def make(section: AdaBest) -> Correction:
    """Close the functions over mu and beta."""

    def after(ended: Ended) -> Tensor:
        return (ended.state / ended.gap).sub_(ended.delta, alpha=section.mu)

    def settle(stepped: Stepped) -> Settled:
        h = (stepped.state["average"] - stepped.params).mul_(section.beta)
        return Settled(stepped.params - h, {"h": h, "average": stepped.params})

    return Correction(offset=_offset, after=after, init=_init, settle=settle, average="average")


def _init(params: Tensor) -> Vectors:
    return {"h": torch.zeros_like(params), "average": params}


def _offset(begins: Begins) -> Tensor:
    return -begins.state
