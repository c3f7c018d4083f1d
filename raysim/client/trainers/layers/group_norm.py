"""nn.GroupNorm by hand: with n = (x - mean) / sqrt(variance + eps) over an example's group of channels, y = w n + b.

w and b have a number per channel; dw and db are the sums of dy n and dy over examples and places; dx is torch's own
backward of n, given dy w.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from raysim.client.trainers.layers.parameter import Parameter


class GroupNorm:
    """One client: x (batch, channels, ...) in any layout.

    Args:
        module: groups and eps.
        weight, bias: (channels,), or None.
        like: dtype of what is computed.
    """

    def __init__(self, module: nn.GroupNorm, weight: Parameter | None, bias: Parameter | None, like: Tensor) -> None:
        self._groups, self._eps = module.num_groups, module.eps
        self._weight, self._bias = weight, bias
        self._dtype = like.dtype
        self._x = self._mean = self._rstd = like

    def forward(self, x: Tensor) -> Tensor:
        """In the shape of x, and on a CPU in its layout."""
        self._x = x.to(self._dtype)
        if self._x.is_cuda:
            # torch's kernel for cards takes no channels-last images.
            self._x = self._x.contiguous()
        values = [None if p is None else p.value for p in (self._weight, self._bias)]
        y: Tensor
        y, self._mean, self._rstd = _group_norm(self._x, *values, *_sizes(x), self._groups, self._eps)
        return y

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """All three in one pass of the library."""
        # Gradients in another layout than the examples' would be read as if they had it.
        same = torch.empty_like(self._x).copy_(dy)
        weight = None if self._weight is None else self._weight.value
        mask = [need_dx, self._weight is not None, self._bias is not None]
        dx, dw, db = _group_norm_backward(
            same, self._x, self._mean, self._rstd, weight, *_sizes(self._x), self._groups, mask
        )
        for parameter, gradient in ((self._weight, dw), (self._bias, db)):
            if parameter is not None:
                parameter.accept(gradient, alpha)
        return dx if need_dx else dy


class StackedGroupNorm:
    """K clients: x (A, batch, channels, ...).

    Args:
        module: groups and eps.
        weight, bias: (K, channels), or None.
        like: dtype of what is computed.
    """

    def __init__(self, module: nn.GroupNorm, weight: Parameter | None, bias: Parameter | None, like: Tensor) -> None:
        self._groups, self._eps = module.num_groups, module.eps
        self._weight, self._bias = weight, bias
        self._dtype = like.dtype
        self._x = self._normal = self._mean = self._rstd = like

    def forward(self, x: Tensor) -> Tensor:
        """In the shape of x, contiguous."""
        self._x = x.to(self._dtype).flatten(0, 1).contiguous()
        y, self._mean, self._rstd = _group_norm(self._x, None, None, *_sizes(self._x), self._groups, self._eps)
        self._normal = y.view(*x.shape[:3], -1)
        if self._weight is None:
            return self._normal.view(x.shape)
        y = self._normal * self._channel_of(self._weight)
        if self._bias is not None:
            y += self._channel_of(self._bias)
        return y.view(x.shape)

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The weight moves after dx was made from it."""
        numbers = dy.to(self._dtype).contiguous().view(*dy.shape[:3], -1)
        dx = dy
        if need_dx:
            scaled = numbers if self._weight is None else numbers * self._channel_of(self._weight)
            sizes, mask = _sizes(self._x), [True, False, False]
            dx = _group_norm_backward(
                scaled.view(self._x.shape), self._x, self._mean, self._rstd, None, *sizes, self._groups, mask
            )[0].view(dy.shape)
        if self._weight is not None:
            self._weight.first(len(dy)).accept((numbers * self._normal).sum((1, 3)), alpha)
        if self._bias is not None:
            self._bias.first(len(dy)).accept(numbers.sum((1, 3)), alpha)
        return dx

    def _channel_of(self, parameter: Parameter) -> Tensor:
        """(A, 1, channels, 1)."""
        clients = len(self._normal)
        return parameter.value[:clients, None, :, None]


def _sizes(x: Tensor) -> tuple[int, int, int]:
    """Examples, channels, places."""
    return x.shape[0], x.shape[1], x.numel() // (x.shape[0] * x.shape[1])


_group_norm = torch.ops.aten.native_group_norm.default
_group_norm_backward = torch.ops.aten.native_group_norm_backward.default
