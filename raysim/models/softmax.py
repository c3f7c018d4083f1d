"""Computes softmax over the last axis, fast for a short axis, and with the same bits for a row at any place.

torch's kernels process the last axis in vectors. Ten classes do not fill a vector, so torch processes them number by
number: 640 such rows take 135 us. Padded with minus infinity to a whole vector, whose shares are 0, they take 40 us.
The first axis would be as fast, but there the rows that do not fill the last vector have other bits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

VECTOR = 16
"""Numbers that fill a vector."""

MANY = 64
"""Number of rows from which padding pays."""


class Softmax:
    """exp(x) / sum of exp(x) over the last axis of x (..., classes).

    Args:
        many: number of rows from which short rows are padded; 0 makes a row's bits a function of the row alone.
        keeps: memory from call to call.
    """

    def __init__(self, many: int = MANY, keeps: bool = True) -> None:
        self._many, self._keeps = many, keeps
        self._filled = torch.empty(0, 0)

    def __call__(self, x: Tensor) -> Tensor:
        """Compute into new memory, in which rows may lie a vector apart."""
        if not _is_flat_and_short(x, self._many):
            return torch.softmax(x, -1)
        filled = self._room_for(x)
        filled[:, : x.shape[1]].copy_(x)
        return torch.softmax(filled, -1)[:, : x.shape[1]]

    def _room_for(self, x: Tensor) -> Tensor:
        rows = len(x)
        if not self._keeps:
            return x.new_full((rows, VECTOR), -math.inf)
        if len(self._filled) < rows or self._filled.dtype != x.dtype:
            self._filled = x.new_full((rows, VECTOR), -math.inf)
        return self._filled[:rows]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return -log softmax(logits)[label] per row: logits (rows, classes), labels (rows,).

    Without a gradient, many rows are scored at a time, and a row's bits are a function of the row alone. Scores are of
    float32 at least: logits of a narrower dtype would round each row's loss to two or three digits.
    """
    if logits.dtype.itemsize < torch.float32.itemsize and not torch.is_grad_enabled():
        logits = logits.float()
    if _is_flat_and_short(logits, MANY if logits.requires_grad else 0):
        if logits.requires_grad:
            filled = pad(logits, (0, VECTOR - logits.shape[1]), value=-math.inf)
        else:
            filled = logits.new_full((len(logits), VECTOR), -math.inf)
            filled[:, : logits.shape[1]].copy_(logits)
        return torch.log_softmax(filled, -1).gather(1, labels.unsqueeze(1)).squeeze(1).neg()
    return torch.nn.functional.cross_entropy(logits, labels, reduction="none")


def _is_flat_and_short(x: Tensor, many: int) -> bool:
    # On GPUs each kernel is a launch, and fewer launches are faster.
    return x.dim() == 2 and x.shape[1] < VECTOR and x.shape[0] >= many and x.device.type == "cpu"
