"""nn.Linear by hand: y = x W^T + b; dx = dy W, dW = dy^T x, db = sum of dy over the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.client.trainers.layers.parameter import Parameter, product

LARGE = 1 << 16
"""Weights from which a product in bfloat16 gains more than the casts cost."""

MANY = 64
"""Rows from which the weight's own product gains more in bfloat16 than adding it to float32 weights costs; below it is
made in their dtype, in the same call as the step."""


class Linear:
    """One client. Inputs (..., in); axes between the batch and the features are more rows.

    Args:
        weight: (out, in).
        bias: (out,), or None.
        precision: dtype of the products, where the weight is large.
    """

    def __init__(self, weight: Parameter, bias: Parameter | None, precision: torch.dtype) -> None:
        self._weight, self._bias = weight, bias
        self._transposed = weight.value.t()
        self._low = precision if precision != weight.value.dtype and weight.value.numel() >= LARGE else None
        self._dtype = weight.value.dtype
        self._ones = torch.ones(0, dtype=self._dtype, device=weight.value.device)
        self._x = self._low_weight = weight.value

    def forward(self, x: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
        if self._low is not None:
            self._x, self._low_weight = rows.to(self._dtype), self._weight.value.to(self._low)
            y = torch.mm(rows.to(self._low), self._low_weight.t()).to(self._dtype)
            if self._bias is not None:
                y.add_(self._bias.value)
        else:
            self._x = rows = rows if rows.dtype is self._dtype else rows.to(self._dtype)
            if self._bias is None:
                y = torch.mm(rows, self._transposed)
            else:
                y = torch.addmm(self._bias.value, rows, self._transposed)
        return y if x.dim() == 2 else y.view(*x.shape[:-1], -1)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The weight moves after dx was made from it."""
        weight, rows = self._weight, dy if dy.dim() == 2 else dy.reshape(-1, dy.shape[-1])
        dx, turned = dy, rows.t()
        if self._bias is not None:
            if self._ones.shape[0] != rows.shape[0]:
                self._ones = torch.ones(rows.shape[0], dtype=self._dtype, device=rows.device)
            # A product with ones adds over the batch and into the bias in one call.
            self._bias.into.addmv_(turned, self._ones, beta=self._bias.keep, alpha=alpha)
        if need_dx:
            if self._low is None:
                dx = torch.mm(rows, weight.value)
            else:
                # Cast back: what is below may have no product in bfloat16.
                dx = torch.mm(rows.to(self._low), self._low_weight).to(self._dtype)
        if self._low is not None and rows.shape[0] >= MANY:
            weight.accept(torch.mm(turned.to(self._low), self._x.to(self._low)), alpha)
        else:
            weight.into.addmm_(turned, self._x, beta=weight.keep, alpha=alpha)
        return dx if dy.dim() == 2 or not need_dx else dx.view(*dy.shape[:-1], -1)


class StackedLinear:
    """K clients: x (A, batch, ..., in) with A <= K clients still at work.

    Args:
        weight: (K, in, out); fastest where that is how it lies in memory.
        bias: (K, out), or None.
        precision: dtype of the products, where a client's weight is large.
    """

    def __init__(self, weight: Parameter, bias: Parameter | None, precision: torch.dtype) -> None:
        self._all = (weight, bias)
        self._weight, self._bias = weight, bias
        self._dtype = weight.value.dtype
        self._low = precision if precision != self._dtype and weight.value[0].numel() >= LARGE else None
        self._x = self._used = weight.value

    def forward(self, x: Tensor) -> Tensor:
        """(A, batch, ..., in) -> (A, batch, ..., out)."""
        if x.shape[0] != self._weight.value.shape[0]:
            weight, bias = self._all
            self._weight, self._bias = weight.first(len(x)), None if bias is None else bias.first(len(x))
        rows = x if x.dim() == 3 else x.reshape(len(x), -1, x.shape[-1])
        if self._low is not None:
            self._x, self._used = rows.to(self._low), self._weight.value.to(self._low)
            y = torch.bmm(self._x, self._used).to(self._dtype)
            if self._bias is not None:
                y.add_(self._bias.value.unsqueeze(1))
        else:
            self._x = rows = rows if rows.dtype is self._dtype else rows.to(self._dtype)
            self._used = self._weight.value
            if self._bias is None:
                y = torch.bmm(rows, self._used)
            else:
                y = torch.baddbmm(self._bias.value.unsqueeze(1), rows, self._used)
        return y if x.dim() == 3 else y.view(*x.shape[:-1], -1)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The gradient is stored here: a batched product into strided rows would be one product after another."""
        rows = dy if dy.dim() == 3 else dy.reshape(len(dy), -1, dy.shape[-1])
        if self._bias is not None:
            self._bias.accept(rows.sum(1), alpha)
        # Stored anyway, it may as well be made in bfloat16, and is cast where it is added.
        factor = rows if self._low is None else rows.to(self._low)
        dx = dy
        if need_dx:
            dx = torch.bmm(factor, self._used.transpose(1, 2))
            dx = dx if self._low is None else dx.to(self._dtype)
        self._weight.accept(product(self._x.transpose(1, 2), factor), alpha)
        return dx if dy.dim() == 3 or not need_dx else dx.view(*dy.shape[:-1], -1)
