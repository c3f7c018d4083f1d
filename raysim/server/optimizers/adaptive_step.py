"""What Adam and Yogi share: state, numerator, and the step in three forms of bias correction (k = 1 at first).

none          x <- x - lr m / (sqrt(v) + eps)
epsilon_hat   x <- x - lr sqrt(1 - b2^k) / (1 - b1^k) m / (sqrt(v) + eps), eps not rescaled
kingma        x <- x - lr (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps), the form of torch.optim.Adam

eps stands outside the root in all three, which are three different algorithms at eps = 1e-3. Sources: Reddi et al.
(2021), algorithm 2; the remark before section 2.1 of Kingma and Ba (2015), behind the numbers of Charles et al. (2021);
Kingma and Ba (2015), algorithm 1. Departure: with eps = 0, 0 / 0 is 0, so that a coordinate without a gradient stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Literal, Protocol

import torch
from pydantic import Field
from torch import Tensor

from raysim.models.vectors import fresh
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer, State, Stepped

BiasCorrection = Annotated[
    Literal["none", "epsilon_hat", "kingma"],
    Field(description="Which of three algorithms, whose equations `raysim.server.optimizers.adaptive_step` has."),
]


def denominator(v: Tensor, eps: float, correction: float = 1.0) -> Tensor:
    """sqrt(v / correction) + eps, a new vector; 1 where that is 0, because the numerator is 0 there."""
    root = torch.sqrt(v, out=fresh(v))
    if correction != 1.0:
        root.div_(math.sqrt(correction))
    if eps:
        root.add_(eps)
    # A smaller eps may be 0 in the vector's dtype.
    return root if eps >= torch.finfo(v.dtype).tiny else root.masked_fill_(root == 0, 1.0)


class Adaptive(Protocol):
    """The keys of a section that `make` reads."""

    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...
    @property
    def eps(self) -> float: ...
    @property
    def v0(self) -> float: ...
    @property
    def bias_correction(self) -> BiasCorrection: ...


def make(section: Adaptive, second_moment: Callable[[Tensor, Tensor], Tensor]) -> ServerOptimizer:
    """The optimizer whose second moment is `second_moment(v, g)`, a new vector; m <- b1 m + (1 - b1) f g."""
    b1, b2 = section.beta1, section.beta2

    def init(params: Tensor) -> State:
        return {"m": params.new_zeros(params.shape), "v": params.new_full(params.shape, section.v0)}

    def step(params: Tensor, descent: Descent, state: State) -> Stepped:
        m = descent.fed(state["m"], b1, 1 - b1)
        v = second_moment(state["v"], descent.g)
        lr, first, second = descent.lr, 1 - b1**descent.k, 1 - b2**descent.k
        if section.bias_correction == "kingma":
            moved = denominator(v, section.eps, second)
            lr /= first
        else:
            moved = denominator(v, section.eps)
            if section.bias_correction == "epsilon_hat":
                lr *= math.sqrt(second) / first
        # The model takes over the denominator's memory.
        return Stepped(torch.addcdiv(params, m, moved, value=-lr, out=moved), {"m": m, "v": v})

    return ServerOptimizer(init, step)
