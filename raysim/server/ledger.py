"""Holds the state of the run's diagnostics: tensors by name, checkpointed with the rest of the state.

examples: int64, examples that all cohorts have processed so far.
accuracy: float64, the cohort's training accuracy of the last round, NaN before the first.
moments: float64 (6,), count, means and co-moments of (label similarity, GSI), for their correlation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

Ledger = Mapping[str, Tensor]

CATASTROPHE = 0.5
"""Training accuracy of the cohort below this share of the previous round's is a catastrophic failure.

Source: Charles et al. (2021), section 3.1.
"""

ROUNDING = 1e-10
"""Share of a figure's mean by which rounding may spread it: a GSI of clients that agree is 1 and a few last digits."""


def opened() -> Ledger:
    """The ledger before the first round."""
    return {
        "examples": torch.zeros((), dtype=torch.int64),
        "accuracy": torch.full((), math.nan, dtype=torch.float64),
        "moments": torch.zeros(6, dtype=torch.float64),
    }


def is_catastrophe(ledger: Ledger, accuracy: float) -> bool:
    """Whether the cohort's accuracy fell below half of the previous round's."""
    return accuracy < CATASTROPHE * float(ledger["accuracy"])  # false beside NaN


def paired(moments: Tensor, x: float, y: float) -> Tensor:
    """Moments with one more pair (x, y), by Welford's update, which subtracts no large sums."""
    count, x_mean, y_mean, xx, yy, xy = moments.tolist()
    count += 1
    dx, dy = x - x_mean, y - y_mean
    x_mean, y_mean = x_mean + dx / count, y_mean + dy / count
    after = [count, x_mean, y_mean, xx + dx * (x - x_mean), yy + dy * (y - y_mean), xy + dx * (y - y_mean)]
    return torch.tensor(after, dtype=torch.float64)


def correlation(moments: Tensor) -> float | None:
    """Return Pearson's correlation of the pairs so far; None if it is not defined, as where a figure is constant."""
    count, x_mean, y_mean, xx, yy, xy = moments.tolist()
    if count == 0 or is_constant(xx / count, x_mean) or is_constant(yy / count, y_mean):
        return None
    return float(xy / math.sqrt(xx * yy))


def is_constant(variance: float, mean: float) -> bool:
    """Whether a figure varies by no more than rounding may make of it.

    >>> is_constant(0.0, 0.0), is_constant(4.9e-32, 1.0), is_constant(1e-12, 1.0)
    (True, True, False)
    """
    return variance <= (ROUNDING * mean) ** 2
