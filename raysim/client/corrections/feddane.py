"""FedDANE: every local gradient is grad + gbar - grad f_i(x) + mu (y - x), gbar the cohort's mean of grad f_i(x).

It is weighted as the clients' updates are, and taken in a pass over the cohort before local training. No state.

Source: Li et al. (2019), algorithm 2; docs/algorithms.md section 3. Departures: gbar is of the cohort that trains,
where the paper draws a second one. A client takes grad f_i(x) again when it trains, rather than keep it in between.
"""

from __future__ import annotations

from typing import Literal

from pydantic import NonNegativeFloat
from torch import Tensor

from raysim.client.corrections.correction import Begins, Correction, Vectors
from raysim.section import Section


class FedDane(Section):
    """mu: weighs the pull towards the model that was received."""

    name: Literal["feddane"] = "feddane"
    mu: NonNegativeFloat


def make(section: FedDane) -> Correction:
    """The pull and the difference of gradients."""
    return Correction(pull=section.mu, offset=_offset, full_gradients=True, own_gradient=True, sends=_sends)


def _sends(state: Vectors, gradient: Tensor | None) -> Vectors:
    assert gradient is not None
    return {"gbar": gradient}


def _offset(begins: Begins) -> Tensor:
    assert begins.gradient is not None
    return begins.sent["gbar"] - begins.gradient
