"""Softmax over the last axis, fast where that axis is short.

torch's kernels go along the last axis in vectors, which ten classes do not fill: 320 rows of them take 43 us, of
which the same kernel over the first axis takes 3. Values are the same up to rounding.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHORT = 32
MANY = 64
"""Numbers a row, and rows, from which two transpositions are worth it."""


def softmax(x: Tensor) -> Tensor:
    """exp(x) / sum of exp(x) over the last axis, in fresh contiguous memory."""
    if _is_flat_and_short(x):
        return torch.softmax(x.t().contiguous(), 0).t().contiguous()
    return torch.softmax(x, -1)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """-log softmax(logits)[label] per row: logits (rows, classes), labels (rows,)."""
    if _is_flat_and_short(logits):
        return -torch.log_softmax(logits.t().contiguous(), 0).gather(0, labels.unsqueeze(0)).squeeze(0)
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def _is_flat_and_short(x: Tensor) -> bool:
    # On cards one kernel is a launch, and fewer launches win.
    return x.dim() == 2 and x.shape[1] <= SHORT and x.shape[0] >= MANY and x.device.type == "cpu"
