"""Places of a text as waves (Vaswani et al. 2017), added to its words; nothing in it is learnt."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """y = scale * x + waves, for x (batch, time, width).

    The waves are not a buffer: buffers are averaged over clients, and these are the same everywhere.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        """In the shape of x."""
        return waves(x.shape[-2], x.shape[-1], x) + self.scale * x

    def extra_repr(self) -> str:
        """For print(module)."""
        return f"scale={self.scale}"


def waves(time: int, width: int, like: Tensor) -> Tensor:
    """(time, width): sin(t / 10000^(2j / width)) in column 2j, the cosine of the same in column 2j + 1."""
    column = torch.arange(width, device=like.device)
    rate = 10_000.0 ** (-2 * (column // 2).double() / width)
    angle = torch.arange(time, device=like.device).double().unsqueeze(1) * rate
    return torch.where(column % 2 == 0, angle.sin(), angle.cos()).to(like.dtype)
