"""Convolutions of 3 x 3 and 5 x 5 by Winograd's minimal filtering: 36 products for 144 or 100, 25 for 81."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from types import MappingProxyType

import torch
from torch import Tensor

from raysim.client.trainers.kernel.operands import address, check, int64s, placed
from raysim.client.trainers.kernel.vectorised import vectorised
from raysim.storage.compiled_c import library

SOURCE = vectorised("winograd.c")

TILES = MappingProxyType({3: (3, 4), 5: (2,)})
"""Sides of tiles, by the side of a kernel. Tiles that see more, for 5 x 5 too, would lose too many digits."""

LEAST_CHANNELS, MOST_OF_DIRECT = 8, 0.8
"""Channels on either side from which it is faster than oneDNN, and products in those of a direct convolution up to
which it is. Forward and backward pass, time here over time there, and products over products. Kernels of 3 x 3: 20 x 64
maps of 24 x 24 .41 (.26), 20 x 128 of 12 x 12 .38, 20 x 256 of 6 x 6 .52, 20 x 512 of 4 x 4 .58, 20 x 512 of 3 x 3 .67
(.52), 10 x 16 of 32 x 32 .72, 10 x 8 of 8 x 8 .4, 10 x 64 of 3 x 3 .55 (.74), 4 x 256 of 5 x 5 .87 (.83), of 4 x 4 .91
(1.12) and of 2 x 2 1.2 (3.1). From 3 to 32 channels over 20 maps of 32 x 32 1.0. Kernels of 5 x 5: 20 x 64 maps of
16 x 16 .5 (.36), from 32 to 64 channels over 20 of 12 x 12 .65 and over 2 .78, 10 x 128 of 4 x 4 .89 (.49), of 2 x 2
1.07 (.86) and of 3 x 3 1.25 (.86). Held to AVX2, the first at which it was slower had .86 (AMD EPYC, Zen 4)."""

ROWS_OF_KERNELS = 14
"""Tiles whose products take as long as the transforms of kernels, which more places make longer."""

BLOCK = 600_000
"""Bytes of the tiles that are worked on at a time: they lie in a core's second cache, with part of the kernels."""

LEAST_TILES = MappingProxyType({25: 96, 36: 48})
MOST_TILES, WHOLE_ROWS = 240, 4
"""Of a block: many, for each to use a kernel's numbers often, which have so many places; WHOLE_ROWS divides their
number. 20 x 256 maps of 6 x 6, 80 tiles: 11.5 ms as one block, 13.4 as two, where kernels do not stay in the cache."""

_LINE = 64


def may_gain(w: Sequence[int]) -> bool:
    """Whether convolutions with kernels of this shape gain over large enough maps."""
    return len(w) == 4 and w[2] == w[3] and w[2] in TILES and min(w[:2]) >= LEAST_CHANNELS


def gains(x: Sequence[int], w: Sequence[int], padding: Sequence[int]) -> bool:
    """Whether a convolution, one apart, is faster than by torch: x (N, C, H, W), w (O, C, 3, 3) or (O, C, 5, 5)."""
    if not may_gain(w) or len(x) != 4 or len(padding) != 2 or max(padding) >= w[2]:
        return False
    shape = _Filtered(tuple(x), w[0], w[2], tuple(padding))
    return min(shape.behind) >= 1 and shape.products <= MOST_OF_DIRECT * shape.direct


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
        self._convolve(shape, x, w, w.stride(), None if bias is None else bias.contiguous(), y)
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
            out, into, *taps = w.stride()
            above, left = (shape.taps - 1 - by for by in padding)
            turned = _Filtered(tuple(dy.shape), w.shape[1], shape.taps, (above, left), is_turned=True)
            self._convolve(turned, dy, w, (into, out, *taps), None, dx)
        if wanted[1]:
            dw = torch.empty(w.shape, dtype=self._dtype)
            plan = self._plan(shape)
            self._library.convolve_back(plan.numbers, *placed(x), *placed(dy), *placed(dw), address(self._room))
        return dx, dw, dy.sum((0, 2, 3)) if wanted[2] else None

    def _convolve(
        self, shape: _Filtered, x: Tensor, w: Tensor, strides: Sequence[int], bias: Tensor | None, y: Tensor
    ) -> None:
        plan = self._plan(shape)
        self._library.convolve(
            plan.numbers,
            *placed(x),
            address(w),
            int64s(strides),
            None if bias is None else address(bias),
            *placed(y),
            address(self._room),
        )

    def _shape(self, x: Tensor, w: Tensor, padding: Sequence[int]) -> _Filtered:
        if w.dim() != 4 or x.dim() != 4:
            raise RuntimeError(f"Maps and kernels have four axes, but got {tuple(x.shape)} and {tuple(w.shape)}.")
        taps = w.shape[2] if w.shape[2] in TILES else min(TILES)
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
    below, left and right. is_turned: whether kernels are turned round."""

    x: tuple[int, ...]
    out: int
    taps: int
    padding: tuple[int, ...]
    is_turned: bool = False

    @cached_property
    def behind(self) -> tuple[int, int]:
        """Rows and columns of the map behind."""
        (height, width), (above, left) = self.x[2:], self.padding
        return height + 2 * above - self.taps + 1, width + 2 * left - self.taps + 1

    @property
    def direct(self) -> int:
        """Products of a direct convolution, for each pair of channels."""
        return self.taps**2 * self.x[0] * prod(self.behind)

    @property
    def products(self) -> int:
        """The same here, and what the transforms of kernels take besides."""
        return self._products(self._tile)

    @property
    def _tile(self) -> int:
        return min(TILES[self.taps], key=self._products)

    def _products(self, tile: int) -> int:
        return self._places(tile) * (self.x[0] * self._each(tile) + ROWS_OF_KERNELS)

    def _places(self, tile: int) -> int:
        return (tile + self.taps - 1) ** 2

    def _each(self, tile: int) -> int:
        """Tiles of an example."""
        return prod(-(-one // tile) for one in self.behind)

    def numbers(self, size: int) -> tuple[int, ...]:
        """`Shape` of winograd.c, for numbers of `size` bytes."""
        n, channels, *sides = self.x
        lanes, tile = _LINE // size, self._tile
        filled = sum(-(-one // lanes) * lanes for one in (channels, self.out))
        places = self._places(tile)
        fitting = BLOCK // (places * size * filled) // WHOLE_ROWS * WHOLE_ROWS
        most = min(MOST_TILES, max(LEAST_TILES[places], fitting))
        together = max(1, min(n, most // self._each(tile)))
        return n, channels, self.out, *sides, *self.padding, self.taps, self.is_turned, tile, most, together
