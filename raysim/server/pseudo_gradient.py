"""Makes the pseudo-gradient from the sums of a round."""

from __future__ import annotations

from torch import Tensor

from raysim.models.vectors import BLOCK, fresh


def pseudo_gradient(weighted_sum: Tensor, divisor: float, params: Tensor) -> Tensor:
    """g = -(sum of p_i h_i) from the sums, h_i being the updates as they enter the mean.

    It is -weighted_sum / divisor in the dtype of params; weighted_sum is float64 and is divided before it is rounded.
    """
    g = fresh(params)
    # Block by block: a float64 quotient of the whole model would be two more models of memory.
    for block, part in zip(g.split(BLOCK), weighted_sum.split(BLOCK), strict=True):
        block.copy_(part.div(-divisor))
    return g
