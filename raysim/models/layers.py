"""Defines layers of sequences as plain modules: causal self-attention, positions, a residual sequence, tied ends."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class CausalSelfAttention(nn.Module):
    """(batch, time, width) -> (batch, time, width); a place attends to itself and to earlier places.

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
        """Compute attention by explicit products: torch's fused attention has no deterministic backward on GPUs."""
        q, k, v = (split_heads(project(x), self.heads) for project in (self.query, self.key, self.value))
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]) + causal_mask(x.shape[-2], q)
        outputs: Tensor = self.out(join_heads(torch.softmax(scores, -1) @ v))
        return outputs


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshape (..., time, width) -> (..., heads, time, width / heads)."""
    return x.view(*x.shape[:-1], heads, -1).transpose(-2, -3)


def join_heads(x: Tensor) -> Tensor:
    """Reshape (..., heads, time, d) -> (..., time, heads * d), contiguous."""
    return x.transpose(-2, -3).flatten(-2)


def causal_mask(time: int, like: Tensor) -> Tensor:
    """Return the mask (time, time): 0 where the column's place is not after the row's, else -infinity."""
    return torch.full((time, time), -torch.inf, dtype=like.dtype, device=like.device).triu_(1)


class Positions(nn.Module):
    """y = scale * x + waves, for x (batch, time, width).

    The waves are not a buffer: buffers are averaged over clients, and these are the same everywhere.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """Return y in the shape of x."""
        return waves(x.shape[-2], x.shape[-1], x) + self.scale * x

    def extra_repr(self) -> str:
        """Describe the module for print(module)."""
        return f"scale={self.scale}"


def waves(time: int, width: int, like: Tensor) -> Tensor:
    """Return (time, width): sin(t / 10000^(2j / width)) in column 2j, the cosine of the same in column 2j + 1."""
    column = torch.arange(width, device=like.device)
    rate = 10_000.0 ** (-2 * (column // 2).double() / width)
    angle = torch.arange(time, device=like.device).double().unsqueeze(1) * rate
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).to(like.dtype)


class Residual(nn.Module):
    """y = x + body(x)."""

    def __init__(self, body: nn.Sequential) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return y in the shape of x, which the body must keep."""
        around: Tensor = x + self.body(x)
        return around


class Tied(nn.Module):
    """y = body(E[words]) E^T with E (vocabulary, width): (batch, time) integers -> (batch, time, vocabulary).

    The body maps (batch, time, width) to the same shape.
    """

    def __init__(self, vocabulary: int, width: int, body: nn.Sequential) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.body = body

    def forward(self, words: Tensor) -> Tensor:
        """Return a score for every word at every place."""
        return functional.linear(self.body(self.embedding(words)), self.embedding.weight)
