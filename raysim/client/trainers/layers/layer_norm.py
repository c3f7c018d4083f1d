"""nn.LayerNorm by hand: with n = (x - mean) / sqrt(variance + eps) over the last axes, y = w n + b.

dw and db are the sums of dy n and dy over all other axes; dx is torch's own backward of n, given dy w.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from raysim.client.trainers.layers.parameter import Parameter


class LayerNorm:
    """One client.

    Args:
        module: normalized shape and eps.
        weight, bias: of that shape, or None.
        like: dtype of what is computed.
    """

    def __init__(self, module: nn.LayerNorm, weight: Parameter | None, bias: Parameter | None, like: Tensor) -> None:
        self._shape, self._eps = list(module.normalized_shape), module.eps
        self._weight, self._bias = weight, bias
        self._values = [None if p is None else p.value for p in (weight, bias)]
        self._dtype = like.dtype
        self._x = self._mean = self._rstd = like

    def forward(self, x: Tensor) -> Tensor:
        """In the shape of x."""
        self._x = x.to(self._dtype).contiguous()
        y: Tensor
        y, self._mean, self._rstd = _layer_norm(self._x, self._shape, *self._values, self._eps)
        return y

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """All three in one pass of the library."""
        mask = [need_dx, self._weight is not None, self._bias is not None]
        dx, dw, db = _layer_norm_backward(
            dy.to(self._dtype).contiguous(), self._x, self._shape, self._mean, self._rstd, *self._values, mask
        )
        for parameter, gradient in ((self._weight, dw), (self._bias, db)):
            if parameter is not None:
                parameter.accept(gradient, alpha)
        return dx if need_dx else dy


class StackedLayerNorm:
    """K clients: x (A, batch, ..., *normalized shape).

    Args:
        module: normalized shape and eps.
        weight, bias: (K, *normalized shape), or None.
        like: dtype of what is computed.
    """

    def __init__(self, module: nn.LayerNorm, weight: Parameter | None, bias: Parameter | None, like: Tensor) -> None:
        self._shape, self._eps = list(module.normalized_shape), module.eps
        self._weight, self._bias = weight, bias
        self._dtype = like.dtype
        self._x = self._normal = self._mean = self._rstd = like

    def forward(self, x: Tensor) -> Tensor:
        """In the shape of x."""
        self._x = x.to(self._dtype).contiguous()
        y, self._mean, self._rstd = _layer_norm(self._x, self._shape, None, None, self._eps)
        self._normal = self._by_row(y)
        if self._weight is None:
            return self._normal.view(x.shape)
        y = self._normal * self._row_of(self._weight)
        if self._bias is not None:
            y += self._row_of(self._bias)
        return y.view(x.shape)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The weight moves after dx was made from it."""
        rows = self._by_row(dy.to(self._dtype).contiguous())
        dx = dy
        if need_dx:
            scaled = rows if self._weight is None else rows * self._row_of(self._weight)
            mask = [True, False, False]
            dx = _layer_norm_backward(
                scaled.view(self._x.shape), self._x, self._shape, self._mean, self._rstd, None, None, mask
            )[0]
        if self._weight is not None:
            self._accept(self._weight, (rows * self._normal).sum(1), alpha)
        if self._bias is not None:
            self._accept(self._bias, rows.sum(1), alpha)
        return dx

    def _by_row(self, x: Tensor) -> Tensor:
        """(A, rows, numbers of the normalized shape)."""
        return x.view(len(x), -1, math.prod(self._shape))

    def _row_of(self, parameter: Parameter) -> Tensor:
        """(A, 1, numbers)."""
        return parameter.value[: len(self._x)].flatten(1).unsqueeze(1)

    def _accept(self, parameter: Parameter, gradient: Tensor, alpha: float) -> None:
        parameter.first(len(gradient)).accept(gradient.view(-1, *self._shape), alpha)


_layer_norm = torch.ops.aten.native_layer_norm.default
_layer_norm_backward = torch.ops.aten.native_layer_norm_backward.default
