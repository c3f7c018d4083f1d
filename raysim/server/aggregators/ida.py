"""Inverse distance aggregation: weights proportional to 1 / max(1e-12, |y_i - mean y|), renormalised; mean y is plain.

Source: Yeganeh et al. (2020); docs/algorithms.md section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.server.aggregators.rule import Coefficients
from raysim.server.aggregators.updates import distances_to, pairwise

SMALLEST = 1e-12


def coefficients(inner: Tensor, weights: Tensor) -> Tensor:
    """Coefficients of the updates, adding up to 1; y_i - mean y = h_i - mean h.

    >>> h = torch.tensor([0.0, 0.0, 3.0], dtype=torch.float64)  # mean h = 1: distances 1, 1, 2
    >>> coefficients(h.outer(h), torch.ones(3)).tolist()
    [0.4, 0.4, 0.2]
    """
    plain = torch.full((len(inner),), 1 / len(inner), dtype=torch.float64)
    inverse = 1 / distances_to(pairwise(inner), plain).clamp(min=SMALLEST)
    return inverse / inverse.sum()


RULE = Coefficients(coefficients, "ida", ignores_weights=True)
"""The mean under weighting = "ida"."""
