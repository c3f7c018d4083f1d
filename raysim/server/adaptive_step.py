"""The step that Adam and Yogi share, in its three forms of bias correction (k = 1 in the first round).

none          x <- x - lr m / (sqrt(v) + eps)
epsilon_hat   x <- x - lr sqrt(1 - b2^k) / (1 - b1^k) m / (sqrt(v) + eps), eps not rescaled
kingma        x <- x - lr (m / (1 - b1^k)) / (sqrt(v / (1 - b2^k)) + eps), the form of torch.optim.Adam

eps stands outside the root in all three, which are three different algorithms at eps = 1e-3. Sources: Reddi et al.
(2021), algorithm 2; the remark before section 2.1 of Kingma and Ba (2015), behind the numbers of Charles et al. (2021);
Kingma and Ba (2015), algorithm 1. Departure: with eps = 0, 0 / 0 is 0, so that a coordinate without a gradient stays.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from raysim.server.fresh import fresh

BiasCorrection = Literal["none", "epsilon_hat", "kingma"]


def denominator(v: Tensor, eps: float, correction: float = 1.0) -> Tensor:
    """sqrt(v / correction) + eps, a new vector; 1 where that is 0, because the numerator is 0 there."""
    root = torch.sqrt(v, out=fresh(v))
    if correction != 1.0:
        root.div_(math.sqrt(correction))
    return root.add_(eps) if eps else root.masked_fill_(root == 0, 1.0)


def step(
    params: Tensor,
    m: Tensor,
    v: Tensor,
    *,
    lr: float,
    k: int,
    beta1: float,
    beta2: float,
    eps: float,
    bias_correction: BiasCorrection,
) -> Tensor:
    """The new params, in a new vector."""
    first, second = 1 - beta1**k, 1 - beta2**k
    if bias_correction == "kingma":
        moved = denominator(v, eps, second)
        lr /= first
    else:
        moved = denominator(v, eps)
        if bias_correction == "epsilon_hat":
            lr *= math.sqrt(second) / first
    # The model takes over the denominator's memory.
    return torch.addcdiv(params, m, moved, value=-lr, out=moved)
