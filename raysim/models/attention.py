"""Causal self-attention with several heads (Vaswani et al. 2017), as a layer of a sequence."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


class CausalSelfAttention(nn.Module):
    """(batch, time, width) -> (batch, time, width); a place attends to itself and to what is before it.

    Per head of d = width / heads numbers, with q, k, v the head's shares of x Q^T + b_Q and so on:
    P = softmax(q k^T / sqrt(d) over the places allowed), z = P v; the heads' z side by side go through `out`.

    Args:
        width: of inputs and outputs.
        heads: a divisor of width.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"heads must divide width, but got heads = {heads} and width = {width}.")
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Products written out: torch's fused attention has no deterministic backward on cards."""
        q, k, v = (split(project(x), self.heads) for project in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask(x.shape[-2], q)
        outputs: Tensor = self.out(join(torch.softmax(scores, -1) @ v))
        return outputs


def split(x: Tensor, heads: int) -> Tensor:
    """(..., time, width) -> (..., heads, time, width / heads)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(-2, -3)


def join(x: Tensor) -> Tensor:
    """(..., heads, time, d) -> (..., time, heads * d), contiguous."""
    return x.transpose(-2, -3).flatten(-2)


def mask(time: int, like: Tensor) -> Tensor:
    """(time, time): 0 where the column's place is not after the row's, else -infinity."""
    return torch.full((time, time), -torch.inf, dtype=like.dtype, device=like.device).triu_(1)
