"""SCAFFOLD: every local gradient is grad - c_i + c.

client  c_i <- the mean of its raw local gradients. For plain SGD that is option II, c_i - c + (x - y) / (tau_i lr),
        with its own tau_i and this round's lr, which is how it is computed there; under momentum, another optimizer,
        clipping or weight decay the gradients are summed.
server  c <- c + (M / N) mean(c_i+ - c_i); the model moves as without a correction.

State: all start at 0. Invariant: c = (1 / N) sum of c_i over all N clients.

Source: Karimireddy et al. (2020), algorithm 1, and Wang et al. (2021), equation 4; docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from raysim.client.corrections.correction import Begins, Correction, Ended, Settled, Stepped, Vectors
from raysim.section import Section


class Scaffold(Section):
    """Nothing to choose."""

    name: Literal["scaffold"] = "scaffold"


def make(section: Scaffold, plain: bool) -> Correction:
    """`plain`: the clients' local steps are plain SGD."""
    return Correction(
        offset=_offset,
        after=_after,
        sums_changes=True,
        sums_gradients=not plain,
        init=_init,
        sends=_sends,
        settle=_settle,
    )


def _init(params: Tensor) -> Vectors:
    return {"c": torch.zeros_like(params)}


def _sends(state: Vectors, gradient: Tensor | None) -> Vectors:
    return {"c": state["c"]}


def _offset(begins: Begins) -> Tensor:
    return begins.sent["c"] - begins.state


def _after(ended: Ended) -> Tensor:
    if ended.gradient is not None:
        return ended.gradient
    return (ended.state - ended.sent["c"]).sub_(ended.delta, alpha=1 / (ended.tau * ended.lr))


def _settle(stepped: Stepped) -> Settled:
    c = torch.add(stepped.state["c"], stepped.changes, alpha=1 / stepped.population)
    return Settled(stepped.params, {"c": c})
