"""Convolutions of 3 x 3 and 5 x 5 by Winograd's minimal filtering: 36 products for 144 or 100 (winograd.c)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import torch
from torch import Tensor

from raysim.client.trainers.kernel.operands import address, check, int64s, placed
from raysim.client.trainers.kernel.vectorised import vectorised
from raysim.storage.compiled_c import library

SOURCE = vectorised("winograd.c")

TILES_BY_CHANNEL = MappingProxyType({3: 1 / 6, 5: 1 / 2})
LEAST_CHANNELS, LEAST_SIDE = 8, 4
"""By a kernel's side, tiles of 2 x 2 numbers of a batch for each channel of the side that has more; channels on either
side; and rows and columns of the map behind, from which it is faster than oneDNN. Forward and backward pass, time here
over time there. Kernels of 3 x 3: 20 x 64 maps of 24 x 24 .38, 20 x 128 of 12 x 12 .35, 20 x 256 of 6 x 6 .6, 20 x 32
of 16 x 16 .45, 10 x 16 of 32 x 32 .65, 10 x 8 of 8 x 8 .4. From 3 to 32 channels over 20 maps of 32 x 32 1.0; 128
channels over 20 maps of 3 x 3 1.0; 256 over 4 maps of 4 x 4, 16 tiles, 1.2, over 4 of 6 x 6, 36 tiles, .86; 512 over 20
maps of 4 x 4, 80 tiles, 1.0. Kernels of 5 x 5: 20 x 64 maps of 16 x 16 .5, from 32 to 64 channels over 20 of 12 x 12 .65 and
over 2 .78, 64 over 10 of 4 x 4 .94, 128 over 20 of 4 x 4 1.0, from 6 to 16 over 10 of 12 x 12 .85, where what else
a step can do is as fast (AMD EPYC, Zen 4, busy)."""

ROWS_OF_KERNELS = 14
"""Tiles whose products take as long as the transforms of kernels, which more places make longer."""

BLOCK = 600_000
"""Bytes of the tiles that are worked on at a time: they lie in a core's second cache, with part of the kernels."""

LEAST_TILES = MappingProxyType({16: 36, 36: 48})
MOST_TILES, WHOLE_ROWS = 240, 4
"""Of a block: many, for each to use a kernel's numbers often, which have so many places; WHOLE_ROWS divides their
number."""

_LINE = 64


def may_gain(w: Sequence[int]) -> bool:
    """Whether convolutions with kernels of this shape gain over large enough maps."""
    return len(w) == 4 and w[2] == w[3] and w[2] in TILES_BY_CHANNEL and min(w[:2]) >= LEAST_CHANNELS


def gains(x: Sequence[int], w: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether a convolution, one apart, is faster than by torch: x (N, C, H, W), w (O, C, 3, 3) or (O, C, 5, 5)."""
    if not may_gain(w) or len(x) != 4 or len(padding) != 2 or max(padding) >= w[2]:
        return False
    shape = _Filtered(tuple(x), w[0], w[2], tuple(padding))
    return min(shape.behind) >= LEAST_SIDE and shape.tiles(2) >= TILES_BY_CHANNEL[w[2]] * max(w[:2])


class Winograd:
    """Convolutions and their gradients on one thread, with memory that is used again.

    dtype: of all numbers.

    Raises:
        NoLibraryError: this machine has no compiled library.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._library = library(SOURCE, dtype)
        self._library.room_for.restype = ctypes.c_int64
        self._dtype, self._room = dtype, torch.empty(0, dtype=dtype)
        self._plans: dict[_Filtered, _Plan] = {}

    def convolution(
        self, x: Tensor, w: Tensor, bias: Tensor | None, padding: Sequence[int], layout: torch.memory_format
    ) -> Tensor:
        """y = w x + bias (N, O, H', W') in this layout, of x (N, C, H, W) and w (O, C, 3, 3) or
        (O, C, 5, 5) of any strides.

        Raises:
            RuntimeError: operands that do not fit one another, or are not of this dtype on the CPU.
        """
        shape = self._shape(x, w, padding)
        if bias is not None:
            self._check(bias, (w.shape[0],), "bias")
        y = torch.empty((x.shape[0], w.shape[0], *shape.behind), dtype=self._dtype, memory_format=layout)
        self._convolve(shape, x, w.data_ptr(), w.stride(), None if bias is None else bias.contiguous(), y)
        return y

    def gradients(
        self,
        dy: Tensor,
        x: Tensor,
        w: Tensor,
        padding: Sequence[int],
        wanted: Sequence[bool],
        layout: torch.memory_format,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Gradients of x, in this layout, of w, contiguous, and of the bias, each if it is wanted.

        Raises:
            RuntimeError: as `convolution`.
        """
        shape = self._shape(x, w, padding)
        self._check(dy, (x.shape[0], w.shape[0], *shape.behind), "gradients")
        dx = dw = None
        if wanted[0]:
            # A convolution with the kernels turned round, from the outputs' channels to the inputs'.
            dx = torch.empty(x.shape, dtype=self._dtype, memory_format=layout)
            out, into, down, across = w.stride()
            most = shape.taps - 1
            last = w.data_ptr() + most * (down + across) * w.element_size()
            above, left = (most - by for by in padding)
            turned = _Filtered(tuple(dy.shape), w.shape[1], shape.taps, (above, left))
            self._convolve(turned, dy, last, (into, out, -down, -across), None, dx)
        if wanted[1]:
            dw = torch.empty(w.shape, dtype=self._dtype)
            plan = self._plan(shape)
            self._library.convolve_back(plan.numbers, *placed(x), *placed(dy), *placed(dw), address(self._room))
        return dx, dw, dy.sum((0, 2, 3)) if wanted[2] else None

    def _convolve(
        self, shape: _Filtered, x: Tensor, w: int, strides: Sequence[int], bias: Tensor | None, y: Tensor
    ) -> None:
        plan = self._plan(shape)
        self._library.convolve(
            plan.numbers,
            *placed(x),
            ctypes.c_void_p(w),
            int64s(strides),
            None if bias is None else address(bias),
            *placed(y),
            address(self._room),
        )

    def _shape(self, x: Tensor, w: Tensor, padding: Sequence[int]) -> _Filtered:
        if w.dim() != 4 or x.dim() != 4:
            raise RuntimeError(f"Maps and kernels have four axes, but got {tuple(x.shape)} and {tuple(w.shape)}.")
        taps = w.shape[2] if w.shape[2] in TILES_BY_CHANNEL else min(TILES_BY_CHANNEL)
        self._check(w, (w.shape[0], x.shape[1], taps, taps), "kernels")
        self._check(x, x.shape, "maps")
        shape = _Filtered(tuple(x.shape), w.shape[0], taps, tuple(padding))
        is_margin = len(padding) == 2 and 0 <= min(padding) <= max(padding) < taps
        if not is_margin or min((*x.shape, *w.shape, *shape.behind)) < 1:
            raise RuntimeError(f"Maps {tuple(x.shape)} with a margin of {list(padding)} leave none behind.")
        return shape

    def _check(self, tensor: Tensor, shape: Sequence[int], name: str) -> None:
        check("A convolution", name, tensor, shape, self._dtype)

    def _plan(self, shape: _Filtered) -> _Plan:
        """The shape's plan, for which there is room."""
        plan = self._plans.get(shape)
        if plan is None:
            numbers = int64s(shape.numbers(self._dtype.itemsize))
            plan = self._plans[shape] = _Plan(numbers, self._library.room_for(numbers))
        if plan.room > len(self._room):
            self._room = torch.empty(plan.room, dtype=self._dtype)
        return plan


@dataclass(frozen=True)
class _Plan:
    """`Shape` of winograd.c, and the numbers that its room must have."""

    numbers: ctypes.Array[ctypes.c_int64]
    room: int


@dataclass(frozen=True)
class _Filtered:
    """Of a convolution. x: (N, C, H, W). out: channels behind. taps: rows of a kernel, and columns. padding: above and
    below, left and right."""

    x: tuple[int, ...]
    out: int
    taps: int
    padding: tuple[int, ...]

    @cached_property
    def behind(self) -> tuple[int, int]:
        """Rows and columns of the map behind."""
        (height, width), (above, left) = self.x[2:], self.padding
        return height + 2 * above - self.taps + 1, width + 2 * left - self.taps + 1

    def tiles(self, side: int) -> int:
        """Of this side, of a batch."""
        return self.x[0] * self._each(side)

    def _each(self, side: int) -> int:
        down, across = (-(-one // side) for one in self.behind)
        return down * across

    @property
    def _tile(self) -> int:
        """The side for which there is less to do. Kernels of 5 x 5 have one, whose tiles see as much as the larger
        one's of 3 x 3: still larger ones lose too many digits."""
        if self.taps != min(TILES_BY_CHANNEL):
            return 2
        return min((2, 4), key=lambda side: self._places(side) * (self.tiles(side) + ROWS_OF_KERNELS))

    def _places(self, tile: int) -> int:
        return (tile + self.taps - 1) ** 2

    def numbers(self, size: int) -> tuple[int, ...]:
        """`Shape` of winograd.c, for numbers of `size` bytes."""
        n, channels, *sides = self.x
        lanes, tile = _LINE // size, self._tile
        filled = sum(-(-one // lanes) * lanes for one in (channels, self.out))
        places = self._places(tile)
        fitting = BLOCK // (places * size * filled) // WHOLE_ROWS * WHOLE_ROWS
        most = min(MOST_TILES, max(LEAST_TILES[places], fitting))
        together = max(1, min(n, most // self._each(tile)))
        return n, channels, self.out, *sides, *self.padding, self.taps, tile, most, together
