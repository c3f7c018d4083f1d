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
    """Return Pearson's correlation of the pairs so far; None if it is not defined."""
    _, _, _, xx, yy, xy = moments.tolist()
    return xy / math.sqrt(xx * yy) if xx > 0 and yy > 0 else None
