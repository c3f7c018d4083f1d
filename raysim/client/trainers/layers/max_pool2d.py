"""nn.MaxPool2d by hand: dx is dy at the place of each window's maximum (the first, where several are equal)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class MaxPool2d:
    """For images (..., channels, height, width); a stack's client axis is folded into the batch.

    Args:
        module: kernel, stride, padding, dilation and ceil_mode.
        by_scatter: whether dx is scattered, which has a deterministic kernel on cards, where torch's own backward has
            none; on a CPU that is the slower choice.
    """

    def __init__(self, module: nn.MaxPool2d, by_scatter: bool = False) -> None:
        self._by_scatter = by_scatter
        self._window: tuple[Any, ...] = tuple(
            _pair(v) for v in (module.kernel_size, module.stride or module.kernel_size, module.padding, module.dilation)
        )
        self._ceil = module.ceil_mode
        self._x = self._indices = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """The maxima, in the memory format of x."""
        self._x = _images(x)
        y: Tensor
        y, self._indices = _max_pool(self._x, *self._window, self._ceil)
        return y if x.dim() == 4 else y.view(*x.shape[:-3], *y.shape[1:])

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """dx in the memory format of x."""
        images = _images(dy).to(self._x.dtype)
        if self._x.is_contiguous(memory_format=torch.channels_last):
            images = images.contiguous(memory_format=torch.channels_last)
        dx: Tensor
        if self._by_scatter:
            dx = torch.zeros_like(self._x, memory_format=torch.contiguous_format)
            dx.flatten(2).scatter_add_(2, self._indices.flatten(2), images.flatten(2))
        else:
            dx = _max_pool_backward(images, self._x, *self._window, self._ceil, self._indices)
        return dx if dy.dim() == 4 else dx.view(*dy.shape[:-3], *dx.shape[1:])


def _images(x: Tensor) -> Tensor:
    """(..., channels, height, width) as four axes; three are a batch of images without channels."""
    return x.unsqueeze(0) if x.dim() == 3 else x.flatten(0, -4)


def _pair(value: int | tuple[int, ...]) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


_max_pool = torch.ops.aten.max_pool2d_with_indices.default
_max_pool_backward = torch.ops.aten.max_pool2d_with_indices_backward.default
