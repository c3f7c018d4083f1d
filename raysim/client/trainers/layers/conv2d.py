"""nn.Conv2d by hand. One client: the library's convolution, channels last. A stack: unfold and batched products."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysim.client.trainers.kernel.winograd import Winograd, gains
from raysim.client.trainers.layers.parameter import Parameter, product


def channels_last(x: Tensor) -> Tensor:
    """x (batch, channels, height, width) with the channels innermost, one channel included.

    With one channel both layouts are the same memory, and asking for the format changes nothing, so that the layer
    would take the strides at hand for the other layout: they are set here.
    """
    if x.shape[1] > 1 or not x.is_contiguous():
        return x.contiguous(memory_format=torch.channels_last)
    height, width = x.shape[2:]
    strides = (height * width, 1, width, 1)
    return x if x.stride() == strides else x.as_strided(x.shape, strides)


class Conv2d:
    """One client: x (batch, in, height, width) in any layout, y channels last.

    Args:
        module: stride, padding, dilation, groups.
        weight: (out, in / groups, kernel height, kernel width).
        bias: (out,), or None.
        precision: dtype of the products.
        winograd: computes convolutions that gain by it.
    """

    def __init__(
        self,
        module: nn.Conv2d,
        weight: Parameter,
        bias: Parameter | None,
        precision: torch.dtype,
        winograd: Winograd | None = None,
    ) -> None:
        self._weight, self._bias = weight, bias
        moves = [*module.stride, *module.dilation, module.groups]
        self._padding: tuple[Any, ...] = tuple(module.padding)
        self._winograd = winograd if moves == [1, 1, 1, 1, 1] else None
        self._how: tuple[Any, ...] = (
            list(module.stride), list(module.padding), list(module.dilation), False, [0, 0], module.groups
        )  # fmt: skip
        self._low = precision if precision != weight.value.dtype else None
        self._x = self._used = weight.value

    def forward(self, x: Tensor) -> Tensor:
        """(batch, in, height, width) -> (batch, out, height', width')."""
        value, bias = self._weight.value, None if self._bias is None else self._bias.value
        if self._filters(x):
            assert self._winograd is not None
            self._x, self._used = x, value
            return self._winograd.convolution(x, value, bias, self._padding, torch.channels_last)
        if self._low is not None:
            value, bias = value.to(self._low), None if bias is None else bias.to(self._low)
        self._x, self._used = channels_last(x if x.dtype is value.dtype else x.to(value.dtype)), value
        y: Tensor = _convolution(self._x, value, bias, *self._how)
        return y

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """The library's backward makes gradients of its own memory, which are added in one more pass."""
        if self._filters(self._x):
            assert self._winograd is not None
            wanted, layout = (need_dx, True, self._bias is not None), torch.channels_last
            dx, dw, db = self._winograd.gradients(dy, self._x, self._used, self._padding, wanted, layout)
            return self._accept(dy, alpha, dx, dw, db)
        sizes = None if self._bias is None else [dy.shape[1]]
        dy = dy.to(self._used.dtype).contiguous(memory_format=torch.channels_last)
        mask = [need_dx, True, self._bias is not None]
        dx, dw, db = _convolution_backward(dy, self._x, self._used, sizes, *self._how, mask)
        return self._accept(dy, alpha, dx if need_dx else None, dw, db)

    def _filters(self, x: Tensor) -> bool:
        return self._winograd is not None and gains(x.shape, self._weight.value.shape, self._padding)

    def _accept(self, dy: Tensor, alpha: float, dx: Tensor | None, dw: Tensor | None, db: Tensor | None) -> Tensor:
        assert dw is not None
        self._weight.accept(dw, alpha)
        if self._bias is not None:
            assert db is not None
            self._bias.accept(db, alpha)
        return dy if dx is None else dx


class StackedConv2d:
    """K clients: x (A, batch, in, height, width). With C = in * kernel area and L = positions of the output,
    y = W cols with W (A, out, C) and cols (A, C, batch * L).

    Args:
        module: stride, padding, dilation; groups = 1.
        weight: (K, out, in, kernel height, kernel width).
        bias: (K, out), or None.
        precision: dtype of the products.
    """

    def __init__(self, module: nn.Conv2d, weight: Parameter, bias: Parameter | None, precision: torch.dtype) -> None:
        self._precision = precision
        self._all = (Parameter(weight.value.flatten(2), weight.into.flatten(2), weight.keep), bias)
        self._weight, self._bias = self._all
        self._kernel: tuple[int, ...] = module.kernel_size
        self._how: dict[str, Any] = {
            "dilation": module.dilation, "padding": module.padding, "stride": module.stride
        }  # fmt: skip
        self._shape = torch.Size()
        self._columns = self._used = weight.value

    def forward(self, x: Tensor) -> Tensor:
        """(A, batch, in, height, width) -> (A, batch, out, height', width')."""
        clients, batch = x.shape[:2]
        if clients != len(self._weight.value):
            weight, bias = self._all
            self._weight, self._bias = weight.first(clients), None if bias is None else bias.first(clients)
        self._shape = x.shape
        columns = functional.unfold(x.to(self._precision).flatten(0, 1), self._kernel, **self._how)
        # (A * batch, C, L) -> (A, C, batch * L): one product per client.
        columns = columns.view(clients, batch, *columns.shape[1:]).transpose(1, 2)
        self._columns = columns.reshape(clients, columns.shape[1], -1)
        self._used = self._weight.value.to(self._precision)
        if self._bias is None:
            y = torch.bmm(self._used, self._columns)
        else:
            y = torch.baddbmm(self._bias.value.unsqueeze(2).to(self._precision), self._used, self._columns)
        height, width = (self._positions(axis) for axis in (0, 1))
        return y.view(clients, -1, batch, height, width).transpose(1, 2).contiguous()

    def backward(self, dy: Tensor, alpha: float, need_dx: bool) -> Tensor:
        """dW = dy cols^T; dx folds W^T dy back."""
        clients, batch = dy.shape[:2]
        rows = dy.to(self._precision).transpose(1, 2).reshape(clients, dy.shape[2], -1)
        dx = dy
        if need_dx:
            columns = torch.bmm(self._used.transpose(1, 2), rows)
            columns = columns.view(clients, columns.shape[1], batch, -1).transpose(1, 2).flatten(0, 1)
            dx = functional.fold(columns, self._shape[3:], self._kernel, **self._how).view(self._shape)
        if self._bias is not None:
            self._bias.accept(rows.sum(2), alpha)
        self._weight.accept(product(rows, self._columns.transpose(1, 2)), alpha)
        return dx

    def _positions(self, axis: int) -> int:
        how = self._how
        reach: int = how["dilation"][axis] * (self._kernel[axis] - 1) + 1
        return int((self._shape[3 + axis] + 2 * how["padding"][axis] - reach) // how["stride"][axis] + 1)


_convolution = torch.ops.aten.convolution.default
_convolution_backward = torch.ops.aten.convolution_backward.default
