"""Defines a metric of one's own: sums over a client's examples, and the value that follows from them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from torch import Tensor


class Metric(NamedTuple):
    """Sums that add up over batches, clients and splits, and the value of such a sum.

    sums: (outputs, targets) of a batch -> (S,), the batch's sums. value: from sums (S,), float64 on the CPU, to the
    figure; NaN where it is not defined.
    """

    sums: Callable[[Tensor, Tensor], Tensor]
    value: Callable[[Tensor], float]


Metrics = Mapping[str, Metric | Callable[[Tensor, Tensor], Tensor]]
"""By name: a record, or a function (outputs, targets) -> (batch,), whose mean over examples is the figure."""
