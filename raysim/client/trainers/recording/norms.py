"""Norms of layers, groups and batches as instructions of the compiled interpreter."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from raysim.client.trainers.kernel.operators import Code
from raysim.client.trainers.recording.instruction_list import InstructionList, NotInterpreted, viewed

MOST_NORMALISED = 1 << 14
"""Numbers up to which a batch norm is interpreted; torch's own goes over them fewer times. Whole steps of 10 x 8 and
10 x 16 maps, three convolutions and two norms: with 23,040 numbers .94 of the recording's time, with 20,480 and 40,960
1.03, with 46,080 and 92,160 1.12 to 1.17 (AMD EPYC, Zen 4)."""


def layer_norm(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
    """y, mean, 1 / sd <- each row less its mean, over its sd, times w plus b."""
    x, w, b = named["input"], named["weight"], named["bias"]
    width = math.prod(named["normalized_shape"])
    if w is None and b is not None:
        raise NotInterpreted("has a layer norm with a bias alone")
    y, mean, over_sd = out
    into = [_rows_of(y, width), _by_row(mean), _by_row(over_sd)]
    lines.rows(Code.NORMALISE, width, into, [_rows_of(x, width)], [_flat(w), _flat(b)], float(named["eps"]))


def layer_norm_back(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
    """Gradients of x, w and b."""
    dy, x, w = named["grad_out"], named["input"], named["weight"]
    width = math.prod(named["normalized_shape"])
    dx, dw, db = (one if wanted else None for one, wanted in zip(out, named["output_mask"], strict=True))
    for one in (dw, db):
        if one is not None:
            lines.by_number(Code.FILL, one)
    given = [_rows_of(dy, width), _rows_of(x, width), _by_row(named["mean"]), _by_row(named["rstd"])]
    into = [None if dx is None else _rows_of(dx, width)]
    lines.rows(Code.NORMALISE_SLOPE, width, into, given, [_flat(dw), _flat(db), _flat(w)])


def _rows_of(x: Tensor, width: int) -> Tensor:
    return x if x.shape[-1] == width else viewed(x, (-1, width))


def _by_row(x: Tensor) -> Tensor:
    return viewed(x, (-1, 1))


def _flat(one: Tensor | None) -> Tensor | None:
    return None if one is None else one.view(-1)


def batch_norm(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
    """As `layer_norm`, of each channel over the batch; running statistics follow."""
    x, w, b = named["input"], named["weight"], named["bias"]
    if not named["training"]:
        raise NotInterpreted("has a batch norm that does not train")
    _check_size(x)
    y, mean, over_sd = out
    each = [1, -1, *(1 for _ in x.shape[2:])]
    count = x.numel() // x.shape[1]
    m, r = mean.view(each), over_sd.view(each)
    lines.sum(m, x)
    lines.by_number(Code.LINEAR, m, m, p=1 / count)
    apart, squares = lines.new_like(x), lines.new_like(x)
    lines.by_number(Code.SUBTRACT, apart, x, m, p=1.0)
    lines.by_number(Code.MULTIPLY, squares, apart, apart)
    lines.sum(r, squares)
    lines.by_number(Code.LINEAR, r, r, p=1 / count)
    running, variance = named["running_mean"], named["running_var"]
    momentum = float(named["momentum"])
    if running is not None:
        lines.by_number(Code.LINEAR, running, running, p=1 - momentum)
        lines.by_number(Code.ADD, running, running, mean, p=momentum)
        lines.by_number(Code.LINEAR, variance, variance, p=1 - momentum)
        lines.by_number(Code.ADD, variance, variance, over_sd, p=momentum * count / (count - 1))
    lines.by_number(Code.LINEAR, r, r, p=1.0, q=float(named["eps"]))
    lines.by_number(Code.SQUARE_ROOT, r, r)
    lines.by_number(Code.RECIPROCAL, r, r)
    lines.by_number(Code.MULTIPLY, y, apart, r)
    if w is not None:
        lines.by_number(Code.MULTIPLY, y, y, w.view(each))
    if b is not None:
        lines.by_number(Code.ADD, y, y, b.view(each), p=1.0)


def _check_size(x: Tensor) -> None:
    if x.numel() > MOST_NORMALISED:
        raise NotInterpreted("has a batch norm that torch is faster at")


def batch_norm_back(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
    """Gradients of x, w and b."""
    dy, x, w = named["grad_out"], named["input"], named["weight"]
    if not named["train"]:
        raise NotInterpreted("has a batch norm that does not train")
    _check_size(x)
    each = [1, -1, *(1 for _ in x.shape[2:])]
    count = x.numel() // x.shape[1]
    m, r = named["save_mean"].view(each), named["save_invstd"].view(each)
    dx, dw, db = (one if wanted else None for one, wanted in zip(out, named["output_mask"], strict=True))
    total, aligned = lines.new(*m.shape), lines.new(*m.shape)
    normalised, product = lines.new_like(x), lines.new_like(x)
    lines.by_number(Code.SUBTRACT, normalised, x, m, p=1.0)
    lines.by_number(Code.MULTIPLY, normalised, normalised, r)
    lines.by_number(Code.MULTIPLY, product, normalised, dy)
    lines.sum(total, dy)
    lines.sum(aligned, product)
    if dw is not None:
        lines.by_number(Code.COPY, dw, aligned.view(-1))
    if db is not None:
        lines.by_number(Code.COPY, db, total.view(-1))
    if dx is not None:
        lines.by_number(Code.LINEAR, total, total, p=1 / count)
        lines.by_number(Code.LINEAR, aligned, aligned, p=1 / count)
        lines.by_number(Code.MULTIPLY, normalised, normalised, aligned)
        lines.by_number(Code.SUBTRACT, dx, dy, normalised, p=1.0)
        lines.by_number(Code.SUBTRACT, dx, dx, total, p=1.0)
        lines.by_number(Code.MULTIPLY, dx, dx, r)
        if w is not None:
            lines.by_number(Code.MULTIPLY, dx, dx, w.view(each))


def group_norm(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
    """As `layer_norm`, of each example's groups of channels."""
    x, w, b, groups = named["input"], named["weight"], named["bias"], named["group"]
    y, mean, over_sd = out
    rows = x.shape[0] * groups
    into = [viewed(y, (rows, -1)), viewed(mean, (rows, 1)), viewed(over_sd, (rows, 1))]
    width = x.numel() // rows
    lines.rows(Code.NORMALISE, width, into, [viewed(x, (rows, -1))], [None, None], float(named["eps"]))
    each = [1, -1, *(1 for _ in x.shape[2:])]
    if w is not None:
        lines.by_number(Code.MULTIPLY, y, y, w.view(each))
    if b is not None:
        lines.by_number(Code.ADD, y, y, b.view(each), p=1.0)


def group_norm_back(lines: InstructionList, out: Any, named: Mapping[str, Any]) -> None:
    """Gradients of x, w and b."""
    dy, x, w, groups = named["grad_out"], named["input"], named["weight"], named["group"]
    dx, dw, db = (one if wanted else None for one, wanted in zip(out, named["output_mask"], strict=True))
    rows, channels = x.shape[0] * groups, x.shape[1]
    mean, over_sd = viewed(named["mean"], (rows, 1)), viewed(named["rstd"], (rows, 1))
    by_channel = (x.shape[0], channels, -1)
    if db is not None:
        lines.sum(db.view(1, channels, 1), viewed(dy, by_channel))
    if dw is not None:
        normalised = lines.new(*x.shape)
        by_row = normalised.view(rows, -1)
        lines.by_number(Code.SUBTRACT, by_row, viewed(x, (rows, -1)), mean, p=1.0)
        lines.by_number(Code.MULTIPLY, by_row, by_row, over_sd)
        lines.by_number(Code.MULTIPLY, normalised, normalised, dy)
        lines.sum(dw.view(1, channels, 1), normalised.view(by_channel))
    if dx is not None:
        scaled = dy
        if w is not None:
            scaled = lines.new(*x.shape)
            lines.by_number(Code.MULTIPLY, scaled, dy, w.view(1, -1, *(1 for _ in x.shape[2:])))
        given = [viewed(scaled, (rows, -1)), viewed(x, (rows, -1)), mean, over_sd]
        width = x.numel() // rows
        lines.rows(Code.NORMALISE_SLOPE, width, [viewed(dx, (rows, -1))], given, [None, None, None])
