"""nn.Flatten by hand: (batch, ...) -> (batch, features), in the order of a contiguous tensor."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class Flatten:
    """Args: lead: axes that are kept: 1 for one client (batch), 2 for a stack (clients, batch)."""

    def __init__(self, lead: int) -> None:
        self._lead = lead
        self._shape = torch.Size()

    def forward(self, x: Tensor) -> Tensor:
        """A view where x is contiguous; channels-last images are copied."""
        self._shape = x.shape
        lead = x.shape[: self._lead]
        return x.reshape(*lead, math.prod(x.shape[self._lead :]))

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """dy in the shape of x, contiguous: the layer below brings it into its own layout."""
        return dy.view(self._shape)
