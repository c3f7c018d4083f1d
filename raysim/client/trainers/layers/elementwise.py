"""Layers without parameters that work number by number: ReLU, tanh, dropout, positions, and flattening.

Each takes one client's activations or a stack's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from raysim.client.dropout import Masks
from raysim.models.layers import waves


class Relu:
    """nn.ReLU: y = max(x, 0); dx = dy where y > 0.

    Args: in_place: the layer below does not need its own output in its backward, so it may be overwritten.
    """

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


class Tanh:
    """nn.Tanh: y = tanh x; dx = dy (1 - y^2). It keeps its output, which no layer above may overwrite."""

    def __init__(self) -> None:
        self._y = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """tanh x."""
        self._y = torch.tanh(x)
        return self._y

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """dx, in the memory of dy where it has the type of the outputs."""
        if dy.dtype is not self._y.dtype:
            dy = dy.to(self._y.dtype)
        _tanh_backward(dy, self._y, grad_input=dy)
        return dy


_tanh_backward = torch.ops.aten.tanh_backward.grad_input


class Dropout:
    """nn.Dropout with addressed masks (raysim/client/dropout.py): y = x * mask; dx = dy * mask.

    One client, or a stack: keys (steps,) or (steps, K) decide.

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


class Positions:
    """models/layers.py's: y = scale * x + waves; dx = scale * dy; x: (..., time, width)."""

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._waves = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """In the shape of x; the waves are made once."""
        if self._waves.shape != x.shape[-2:] or self._waves.dtype != x.dtype:
            self._waves = waves(x.shape[-2], x.shape[-1], x)
        return torch.add(self._waves, x, alpha=self._scale)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """dx, in the memory of dy."""
        return dy.mul_(self._scale)


class Flatten:
    """nn.Flatten: (batch, ...) -> (batch, features), in the order of a contiguous tensor.

    Args: lead: axes that are kept: 1 for one client (batch), 2 for a stack (clients, batch).
    """

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
