"""SCAFFOLD as AdaBest's authors write it: every local gradient is grad - h_i + h. With g_i = x - y_i,
gbar = x - mean of y_i, K local steps of every client:

client  h_i <- h_i - h + g_i / (K lr)
server  h <- d h + M / (K lr N) gbar,   d = (N - 1) / N as printed, (N - M) / N with `exact`

State: all start at 0. With the exact factor h is SCAFFOLD's c. Source: Varno et al. (2022), algorithm 2;
docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from raysim.client.corrections.correction import Begins, Correction, Ended, Settled, Stepped, Vectors
from raysim.section import Section


class ScaffoldM(Section):
    """exact: takes the factor that keeps h the mean of all h_i, in place of the printed one."""

    name: Literal["scaffold_m"] = "scaffold_m"
    exact: bool = False


def make(section: ScaffoldM) -> Correction:
    """Close the functions over the factor."""

    def settle(stepped: Stepped) -> Settled:
        population = stepped.population
        gone = stepped.clients if section.exact else 1
        share = stepped.clients / (stepped.tau * stepped.lr * population)
        h = stepped.state["h"] * ((population - gone) / population)
        return Settled(stepped.params, {"h": h.add_(stepped.g, alpha=share)})

    return Correction(offset=_offset, after=_after, init=_init, sends=_sends, settle=settle)


def _init(params: Tensor) -> Vectors:
    return {"h": torch.zeros_like(params)}


def _sends(state: Vectors, gradient: Tensor | None) -> Vectors:
    return {"h": state["h"]}


def _offset(begins: Begins) -> Tensor:
    return begins.sent["h"] - begins.state


def _after(ended: Ended) -> Tensor:
    return (ended.state - ended.sent["h"]).sub_(ended.delta, alpha=1 / (ended.tau * ended.lr))
