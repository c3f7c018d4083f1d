"""nn.Dropout by hand, with addressed masks (raysim/client/dropout.py): y = x * mask; dx = dy * mask."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.client.dropout import Masks


class Dropout:
    """One client, or a stack: keys (steps,) or (steps, K) decide.

    Args:
        p: probability of a zero.
        like: dtype and device of the masks.
    """

    def __init__(self, p: float, like: Tensor) -> None:
        self._masks = Masks(p, like)
        self._keys = self._mask = torch.empty(0)
        self._step = 0

    def address(self, keys: Tensor) -> None:
        """See `Addressed`."""
        self._keys, self._step = keys, 0

    def forward(self, x: Tensor) -> Tensor:
        """x * mask, for the next local step."""
        keys = self._keys[self._step]
        self._step += 1
        if keys.dim():
            keys = keys[: len(x)]
        # The stream is read in the order of a contiguous tensor, whatever the layout of x.
        self._mask = self._masks.draw(keys, x.numel() // keys.numel()).view(x.shape)
        return x * self._mask

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """dx, in the memory of dy."""
        return dy.mul_(self._mask)
