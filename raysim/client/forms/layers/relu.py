"""nn.ReLU by hand: y = max(x, 0); dx = dy where y > 0. Element by element, so the same for a stack."""

from __future__ import annotations

import torch
from torch import Tensor


class Relu:
    """Args: in_place: the layer below does not need its own output in its backward, so it may be overwritten."""

    def __init__(self, in_place: bool) -> None:
        self._forward = torch.relu_ if in_place else torch.relu
        self._y = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """y, in the memory of x where allowed."""
        self._y = self._forward(x)
        return self._y

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """dx, in the memory of dy where it has the type of the outputs."""
        if dy.dtype is not self._y.dtype:
            dy = dy.to(self._y.dtype)
        _threshold_backward(dy, self._y, 0, grad_input=dy)
        return dy


_threshold_backward = torch.ops.aten.threshold_backward.grad_input
