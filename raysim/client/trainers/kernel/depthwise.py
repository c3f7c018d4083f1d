"""Gradients of depthwise convolutions' kernels (depthwise.c), most of which torch makes slowly."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from raysim.client.trainers.kernel.operands import address, check, int64s, placed
from raysim.client.trainers.kernel.vectorised import vectorised
from raysim.storage.compiled_c import library

SOURCE = vectorised("depthwise.c")

USUAL = (3, 3)
"""The kernels that oneDNN has a fast gradient of. Time of the gradient by torch over time here, maps in the usual order
and channels last: kernels of 3 x 3 .8 to 1.8 and .4 to 1.6; of 5 x 5 14 to 31 and 5 to 9; of 7 x 7 22 to 37 and 9; over
one axis, of 3 2.7 and 2.5, of 7 12 and 7, of 31 19 and 11. Whole steps of MobileNetV2, 3 x 3, maps in the usual order,
images of 16 x 16 1.48, of 32 x 32 1.27, of 64 x 64 and 96 x 96 1.03 (AMD EPYC, Zen 4)."""


def is_depthwise(w: Sequence[int], groups: int) -> bool:
    """Whether kernels w (C, 1, height, width) or (C, 1, width) are each of one channel."""
    return len(w) in (3, 4) and w[1] == 1 and w[0] == groups > 1


def gains_much(w: Sequence[int], groups: int) -> bool:
    """Whether their gradient is made many times faster than by torch, whatever the maps' layout."""
    return is_depthwise(w, groups) and tuple(w[2:]) != USUAL


def any_in(module: nn.Module, of: Callable[[Sequence[int], int], bool] = is_depthwise) -> bool:
    """Whether a convolution in the module is depthwise, or such that its kernels' shape and groups are as asked for."""
    each = (child for child in module.modules() if isinstance(child, nn.Conv1d | nn.Conv2d))
    return any(of(child.weight.shape, child.groups) for child in each)


def gains(x: Tensor, w: Sequence[int]) -> bool:
    """Whether the gradient of depthwise kernels is made faster than by torch, as the maps x lie."""
    return tuple(w[2:]) != USUAL or not x.is_contiguous(memory_format=torch.channels_last)


class Depthwise:
    """Gradients of kernels on one thread, with memory that is used again.

    dtype: of all numbers.

    Raises:
        NoLibraryError: this machine has no compiled library.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._library = library(SOURCE, dtype)
        self._library.room_for.restype = ctypes.c_int64
        self._dtype, self._room = dtype, torch.empty(0, dtype=dtype)

    def kernels_gradient(
        self,
        dy: Tensor,
        x: Tensor,
        w: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
    ) -> Tensor:
        """dw (C, 1, height, width), contiguous: the gradient of kernels of shape `w`.

        Args:
            dy: (N, C, H', W'), of any strides, the gradient of the maps behind.
            x: (N, C, H, W), of any strides.
            w: shape of the kernels.
            stride, padding, dilation: of rows and of columns.

        Raises:
            RuntimeError: operands that do not fit one another, or are not of this dtype on the CPU.
        """
        behind = self._behind(x, w, stride, padding, dilation)
        check("A convolution", "maps", x, x.shape, self._dtype)
        check("A convolution", "gradients", dy, (*x.shape[:2], *behind), self._dtype)
        shape = int64s((*x.shape, *w[2:], *behind, *stride, *padding, *dilation))
        if (room := self._library.room_for(shape)) > len(self._room):
            self._room = torch.empty(room, dtype=self._dtype)
        dw = torch.empty(tuple(w), dtype=self._dtype)
        self._library.kernels_gradient(shape, *placed(x), *placed(dy), address(dw), address(self._room))
        return dw

    def _behind(
        self, x: Tensor, w: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
    ) -> tuple[int, ...]:
        """Rows and columns of the maps behind."""
        fit = x.dim() == len(w) == 4 and (x.shape[1], 1) == tuple(w[:2]) and min((*x.shape, *w)) >= 1
        moves_fit = all(len(one) == 2 for one in (stride, padding, dilation)) and min(padding) >= 0
        if not fit or not moves_fit or min((*stride, *dilation)) < 1:
            raise RuntimeError(
                f"Maps {tuple(x.shape)} do not fit a kernel for each channel of shape {tuple(w)} with stride "
                f"{list(stride)}, padding {list(padding)} and dilation {list(dilation)}."
            )
        sides = zip(x.shape[2:], w[2:], stride, padding, dilation, strict=True)
        behind = tuple((side + 2 * margin - by * (taps - 1) - 1) // step + 1 for side, taps, step, margin, by in sides)
        if min(behind) < 1:
            raise RuntimeError(f"Maps {tuple(x.shape)} are smaller than the kernels {tuple(w)} with their dilation.")
        return behind
