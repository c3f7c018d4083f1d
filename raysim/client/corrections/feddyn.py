"""FedDyn: every local gradient is grad - h_i - mu (x - y). With g_i = x - y_i, thetabar = mean of y_i and
gbar = x - thetabar:

client  h_i <- h_i + mu g_i
server  h <- h + (M / N) gbar; what is broadcast is theta = thetabar - h

State: all start at 0, thetabar at the initial model. A client whose local training converged has h_i = its gradient at
y_i: the first-order condition. FedGLAD's f acts on gbar, and so on thetabar and h.

Source: Acar et al. (2021), algorithm 1, in the notation of Varno et al. (2022); docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeFloat
from torch import Tensor

from raysim.client.corrections.correction import Begins, Correction, Ended, Settled, Stepped, Vectors
from raysim.section import Section


class FedDyn(Section):
    """mu: weighs the pull towards the model that was received, and what a client learns of its h_i (0: FedAvg's)."""

    name: Literal["feddyn"] = "feddyn"
    mu: NonNegativeFloat


def make(section: FedDyn) -> Correction:
    """Close the functions over mu."""

    def after(ended: Ended) -> Tensor:
        return torch.sub(ended.state, ended.delta, alpha=section.mu)

    return Correction(pull=section.mu, offset=_offset, after=after, init=_init, settle=_settle, average="average")


def _init(params: Tensor) -> Vectors:
    return {"h": torch.zeros_like(params), "average": params}


def _offset(begins: Begins) -> Tensor:
    return -begins.state


def _settle(stepped: Stepped) -> Settled:
    h = torch.add(stepped.state["h"], stepped.g, alpha=stepped.clients / stepped.population)
    return Settled(stepped.params - h, {"h": h, "average": stepped.params})
