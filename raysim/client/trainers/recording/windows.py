"""Convolutions and pooling as instructions of the compiled interpreter, on views of all windows of a map.

A convolution is a product with what each position of the map sees, laid out once for both passes. Where each channel
has a kernel of its own, a kernel's number is multiplied with the map that it meets, one number after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

from torch import Tensor

from raysim.client.trainers.kernel import depthwise
from raysim.client.trainers.kernel.operators import Code
from raysim.client.trainers.recording.instruction_list import (
    InstructionList,
    NotInterpreted,
    Pair,
    SlowerInterpreted,
    viewed,
)

MOST_LAID_OUT = 1 << 17
"""Numbers that all positions of a convolution see together, up to which it is interpreted. For two convolutions of
3 x 3 and a step of SGD the interpreter takes a ninth of torch's time with 11,520, a half with 92,160, as long with
184,320, and longer beyond (AMD EPYC, Zen 4)."""

MOST_BESIDE = 3 << 18
"""The same, up to which the rest of its step is. Whole steps of three convolutions, norms and shortcuts: .8 of the
recording's time with 369,000 and .9 to 1 with 737,000; 1.03 to 1.1 with 1,660,000, where maps fall out of the cache."""


class _Windows(NamedTuple):
    """Windows of a map: kernel, stride, padding, dilation: each (rows, columns)."""

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair

    def padded(self, lines: InstructionList, x: Tensor) -> Tensor:
        """x (N, C, H, W) with a margin of zeros."""
        (above, left), (n, c, h, w) = self.padding, x.shape
        if not above and not left:
            return x
        wide = lines.new(n, c, h + 2 * above, w + 2 * left)
        lines.by_number(Code.FILL, wide)
        lines.by_number(Code.COPY, self.inside(wide, x), x)
        return wide

    def inside(self, wide: Tensor, x: Tensor) -> Tensor:
        """What lies within the margin."""
        (above, left), (h, w) = self.padding, x.shape[2:]
        return wide[:, :, above : above + h, left : left + w]

    def of(self, wide: Tensor, behind: Sequence[int]) -> Tensor:
        """(N, C, rows of the kernel, columns of it, *behind): what the kernel's numbers meet at each position."""
        n, c, h, w = wide.stride()
        (down, right), (dilated_down, dilated_right) = self.stride, self.dilation
        strides = n, c, h * dilated_down, w * dilated_right, h * down, w * right
        return wide.as_strided((*wide.shape[:2], *self.kernel, *behind), strides, wide.storage_offset())

    @property
    def are_points(self) -> bool:
        """Whether each position sees itself alone."""
        return self.kernel == (1, 1) and self.stride == (1, 1) and self.padding == (0, 0)


def convolution(lines: InstructionList, y: Tensor, named: Mapping[str, Any]) -> None:
    """y <- w x + b over all windows."""
    x, w, b, groups = named["input"], named["weight"], named["bias"], named["groups"]
    windows, (x, w, y) = _laid_out(named, x, w, y)
    if b is None:
        lines.by_number(Code.FILL, y)
    else:
        lines.by_number(Code.COPY, y, b.view(1, -1, 1, 1))
    _check_size(windows, x, y, depthwise.gains_much(w.shape, groups))
    if _has_own_kernels(w, groups):
        seen = windows.of(_padded(lines, windows, x), y.shape[2:])
        for i, j in product(*map(range, windows.kernel)):
            lines.by_number(Code.MULTIPLY_ADD, y, seen[:, :, i, j], w[:, :, i, j].reshape(1, -1, 1, 1))
        return
    columns, kernels = _columns(lines, windows, x, y.shape[2:], groups), _flat(w).view(groups, w.shape[0] // groups, -1)
    into = _flat_maps(y).view(len(y), groups, w.shape[0] // groups, -1)
    for group in range(groups):
        lines.product(into[:, group], kernels[group], columns[:, group], 1.0, 1.0)


def convolution_back(
    lines: InstructionList, out: Any, named: Mapping[str, Any], has_kernels_in_c: bool = False
) -> None:
    """Gradients of x, w and b.

    `has_kernels_in_c`: where it is not interpreted, that of w is made in C (`own_kernels.py`).
    """
    dy, x, w, groups = named["grad_output"], named["input"], named["weight"], named["groups"]
    dx, dw, db = (one if wanted else None for one, wanted in zip(out, named["output_mask"], strict=True))
    if db is not None:
        lines.sum(db.view(1, -1, *(1 for _ in dy.shape[2:])), dy)
    windows, (x, w, dy) = _laid_out(named, x, w, dy)
    _check_size(windows, x, dy, has_kernels_in_c and depthwise.gains_much(w.shape, groups))
    dx, dw = (None if one is None else with_rows(one) for one in (dx, dw))
    if _has_own_kernels(w, groups):
        _own_kernels_back(lines, windows, (dx, dw), (dy, x, w))
        return
    each = w.shape[0] // groups
    columns, kernels = _columns(lines, windows, x, dy.shape[2:], groups), _flat(w).view(groups, each, -1)
    errors = _flat_maps(dy).view(len(dy), groups, each, -1)
    if dw is not None:
        lines.by_number(Code.FILL, dw)
        into = _flat(dw).view(groups, each, -1)
        for group in range(groups):
            over_all = into[group].expand(len(dy), *into[group].shape)
            lines.product(over_all, errors[:, group], columns[:, group].transpose(1, 2), 1.0, 1.0)
    if dx is None:
        return
    made = (
        _flat_maps(dx).view(len(x), groups, -1, dx[0, 0].numel()) if windows.are_points else lines.new(*columns.shape)
    )
    for group in range(groups):
        lines.product(made[:, group], kernels[group].t(), errors[:, group])
    if windows.are_points:
        return
    by_place = made.view(*x.shape[:2], *windows.kernel, *dy.shape[2:])

    def add(into: Tensor, i: int, j: int) -> None:
        lines.by_number(Code.ADD, into, into, by_place[:, :, i, j], p=1.0)

    _add_windows(lines, windows, dx, dy.shape[2:], add)


def _add_windows(
    lines: InstructionList,
    windows: _Windows,
    dx: Tensor,
    behind: Sequence[int],
    add: Callable[[Tensor, int, int], None],
) -> None:
    """dx <- for each number the sum of what the windows that see it say.

    `add`: adds to a view of the numbers that the kernel's number (row, column) meets at each position.
    """
    wide, is_padded = dx, windows.padding != (0, 0)
    if is_padded:
        (above, left), (n, c, h, w) = windows.padding, dx.shape
        wide = lines.new(n, c, h + 2 * above, w + 2 * left)
    lines.by_number(Code.FILL, wide)
    seen = windows.of(wide, behind)
    for i, j in product(*map(range, windows.kernel)):
        add(seen[:, :, i, j], i, j)
    if is_padded:
        lines.by_number(Code.COPY, dx, windows.inside(wide, dx))


def _own_kernels_back(
    lines: InstructionList, windows: _Windows, into: tuple[Tensor | None, Tensor | None], given: tuple[Tensor, ...]
) -> None:
    (dx, dw), (dy, x, w) = into, given
    if dw is not None:
        seen, met = windows.of(_padded(lines, windows, x), dy.shape[2:]), lines.new(*dy.shape)
        for i, j in product(*map(range, windows.kernel)):
            lines.by_number(Code.MULTIPLY, met, dy, seen[:, :, i, j])
            lines.sum(dw[:, :, i, j].reshape(1, -1, 1, 1), met)
    if dx is None:
        return

    def add(into: Tensor, i: int, j: int) -> None:
        lines.by_number(Code.MULTIPLY_ADD, into, dy, w[:, :, i, j].reshape(1, -1, 1, 1))

    _add_windows(lines, windows, dx, dy.shape[2:], add)


def _laid_out(named: Mapping[str, Any], *maps: Tensor) -> tuple[_Windows, tuple[Tensor, ...]]:
    """The windows, and all maps with rows and columns."""
    if named["transposed"]:
        raise NotInterpreted("has a transposed convolution")
    if maps[0].dim() not in (3, 4):
        raise NotInterpreted(f"has a convolution over {maps[0].dim() - 2} axes")
    x, w, y = (with_rows(one) for one in maps)
    stride, padding, dilation = (
        pair(named[name], fill) for name, fill in (("stride", 1), ("padding", 0), ("dilation", 1))
    )
    return _Windows((w.shape[2], w.shape[3]), stride, padding, dilation), (x, w, y)


def _check_size(windows: _Windows, x: Tensor, y: Tensor, lays_out_nothing: bool) -> None:
    """Raise NotInterpreted for large ones. `lays_out_nothing`: what positions see is laid out by no other way either:
    such are the forward pass of depthwise kernels, and their gradient in C."""
    positions = prod(x.shape[:2]) * prod(y.shape[2:])
    seen = positions * prod(windows.kernel)
    if (positions if lays_out_nothing else seen) > MOST_BESIDE:
        raise SlowerInterpreted(f"has a convolution whose positions see {seen:,} numbers, and torch is faster there")
    if seen > MOST_LAID_OUT:
        raise NotInterpreted("has a convolution that torch is faster at")


def with_rows(one: Tensor) -> Tensor:
    """Maps or kernels over one axis as such over two, with one row each; those over two as they are."""
    return one.unsqueeze(2) if one.dim() == 3 else one


def pair(given: Sequence[int], fill: int) -> Pair:
    """Of rows and columns; `fill` for the one row of a map over one axis."""
    return (fill, given[0]) if len(given) == 1 else (given[0], given[1])


def _has_own_kernels(w: Tensor, groups: int) -> bool:
    return groups == w.shape[0] and w.shape[1] == 1 and groups > 1


def _padded(lines: InstructionList, windows: _Windows, x: Tensor) -> Tensor:
    """The padded map, made once for both passes."""
    return lines.laid_out(x, ("padded", windows), lambda: windows.padded(lines, x))


def _columns(lines: InstructionList, windows: _Windows, x: Tensor, behind: Sequence[int], groups: int) -> Tensor:
    """(N, groups, what a position sees, positions), made once for both passes."""
    n, c = x.shape[:2]
    shape = n, groups, c // groups * prod(windows.kernel), prod(behind)
    if windows.are_points and x.is_contiguous():
        return x.view(shape)

    def made() -> Tensor:
        columns = lines.new(n, c, *windows.kernel, *behind)
        lines.by_number(Code.COPY, columns, windows.of(_padded(lines, windows, x), behind))
        return columns

    return lines.laid_out(x, ("columns", windows), made).view(shape)


def _flat(w: Tensor) -> Tensor:
    return viewed(w, (w.shape[0], -1))


def _flat_maps(x: Tensor) -> Tensor:
    return viewed(x, (x.shape[0], x.shape[1], -1))


def max_pool(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
    """The largest of each window, and its index in the plane."""
    x, (y, indices) = named["self"], out
    windows = _pooled(named)
    planes = y.shape[0] * y.shape[1]
    into, where, read = (viewed(one, (planes, *one.shape[2:])) for one in (y, indices, x))
    lines.largest(into, where, read, windows.kernel, windows.stride, windows.padding, windows.dilation)


def max_pool_back(lines: InstructionList, dx: Tensor, named: Mapping[str, Any]) -> None:
    """Each window's gradient goes to its largest number."""
    dy, indices = named["grad_output"], named["indices"]
    planes = dx.shape[0] * dx.shape[1]
    lines.by_number(Code.FILL, dx)
    flat = viewed(dx, (planes, -1))
    by_plane = [viewed(one if one.is_contiguous() else _copied(lines, one), (planes, -1)) for one in (indices, dy)]
    strides = [one.stride() for one in (flat, *by_plane)]
    lines.at(Code.ADD_AT, by_plane[0].shape, flat, by_plane[0], by_plane[1], strides, flat.shape[1])


def _copied(lines: InstructionList, one: Tensor) -> Tensor:
    made = lines.new(*one.shape)
    lines.by_number(Code.COPY, made, one)
    return made


def average_pool(lines: InstructionList, y: Tensor, named: Mapping[str, Any]) -> None:
    """The mean of each window."""
    x, windows = named["self"], _averaged(named)
    seen = windows.of(x, y.shape[2:])
    share = 1 / prod(windows.kernel)
    lines.by_number(Code.FILL, y)
    for i, j in product(*map(range, windows.kernel)):
        lines.by_number(Code.ADD, y, y, seen[:, :, i, j], p=share)


def average_pool_back(lines: InstructionList, dx: Tensor, named: Mapping[str, Any]) -> None:
    """Each window's gradient goes to all of its numbers alike."""
    dy, windows = named["grad_output"], _averaged(named)
    seen = windows.of(dx, dy.shape[2:])
    share = 1 / prod(windows.kernel)
    lines.by_number(Code.FILL, dx)
    for i, j in product(*map(range, windows.kernel)):
        lines.by_number(Code.ADD, seen[:, :, i, j], seen[:, :, i, j], dy, p=share)


def _averaged(named: Mapping[str, Any]) -> _Windows:
    windows = _pooled(named)
    if windows.padding != (0, 0) or named.get("divisor_override") is not None:
        raise NotInterpreted("averages over windows with a margin")
    return windows


def _pooled(named: Mapping[str, Any]) -> _Windows:
    kernel = _square(named["kernel_size"])
    if named.get("ceil_mode") or named["self"].dim() != 4:
        raise NotInterpreted("pools maps without an axis of examples, or with windows that are cut off")
    stride = _square(named["stride"]) if named.get("stride") else kernel
    return _Windows(kernel, stride, _square(named.get("padding", [0])), _square(named.get("dilation", [1])))


def _square(given: Sequence[int]) -> Pair:
    return (given[0], given[0]) if len(given) == 1 else (given[0], given[1])
