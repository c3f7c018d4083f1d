"""Makes the pseudo-gradient from the sums of a round."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.models.vectors import blocks, fresh


def pseudo_gradient(weighted_sum: Tensor, divisor: float | Tensor, params: Tensor) -> Tensor:
    """g = -(sum of p_i h_i) from the sums, h_i being the updates as they enter the mean.

    It is -weighted_sum / divisor in the dtype of params; weighted_sum is float64 and is divided before it is rounded. A
    divisor for every number is (P,) or (1,), and 0 / 0 is 0.
    """
    g = fresh(params)
    # Block by block: a float64 quotient of the whole model would be two more models of memory.
    if isinstance(divisor, Tensor):
        for block, part, own in zip(*map(blocks, (g, weighted_sum, divisor.expand_as(g))), strict=True):
            block.copy_(torch.where(own == 0, 0.0, part.div(-own)))
        return g
    for block, part in zip(blocks(g), blocks(weighted_sum), strict=True):
        block.copy_(part.div(-divisor))
    return g
