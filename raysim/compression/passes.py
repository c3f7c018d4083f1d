"""Rounds vectors at random, and measures what is lost: |v - Q(v)|^2 and |Q(v)|^2, by group.

Differences have the vectors' dtype, sums are float64. On a CPU with a C compiler each is one pass, or both together
(passes.c); elsewhere they are torch's and NumPy's single steps. The bits are the same.
"""

from __future__ import annotations

import ctypes
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim import seeds
from raysim.arrays import Float64s
from raysim.models.layout import Layout
from raysim.models.squared_norms import squared_norm_by_lanes
from raysim.storage import compiled_c
from raysim.storage.compiled_c import CSource

SOURCE = CSource(Path(__file__).with_name("passes.c"), contracted=False)

DRAWN_BITS = 16
"""Of each number's own w. The bits behind them are the same in all w of a vector, so each w alone is uniform."""


class Loss(NamedTuple):
    """What a vector lost: |v - Q(v)|^2, and |Q(v)|^2 by group, (G,)."""

    lost: float
    squared_norms: Float64s


class Groups:
    """The groups of a layout; measured vectors are (P,), with zeros in the gaps."""

    def __init__(self, layout: Layout) -> None:
        self.ends = np.array([*layout.offsets, layout.size][1:], dtype=np.int64)


def largest(v: Tensor) -> float:
    """Return max |v| of (d,); 0 of none, NaN or infinity where v has one."""
    if _compiles(v):
        return float(_library(v).largest(ctypes.c_int64(len(v)), _address(v)))
    return float(torch.stack(torch.aminmax(v)).abs().max()) if len(v) else 0.0


def rounded(v: Tensor, scale: float, unit: float, key: int, out: Tensor) -> None:
    """Write unit round(scale v + w), (d,), to `out`, which may be `v`; w is uniform between -1/2 and 1/2, by the key.

    Ties are rounded to even, so a 0 stays 0 whatever its w is.
    """
    if _compiles(v):
        _rounded_in_c(v, scale, unit, key, out, None)
        return
    draws = seeds.stream(key, -(-len(v) * DRAWN_BITS // 64)).astype("<u8", copy=False)
    own = torch.from_numpy(draws.view("<i2")[: len(v)]).to(v.device, v.dtype)
    w = own.add_(seeds.uniform(key)).mul_(2.0**-DRAWN_BITS)
    torch.mul(v, scale, out=out).add_(w).round_().mul_(unit)


def rounded_and_measured(v: Tensor, scale: float, unit: float, key: int, out: Tensor, groups: Groups) -> Loss:
    """Do both; `out` is not `v`."""
    if _compiles(v):
        return _rounded_in_c(v, scale, unit, key, out, groups)
    rounded(v, scale, unit, key, out)
    return measured(v, out, groups)


def measured(v: Tensor, sent: Tensor, groups: Groups) -> Loss:
    """Return what a vector lost by being sent so."""
    if _compiles(v):
        sums = np.empty((2, len(groups.ends)))
        _library(v).measure(_address(v), _address(sent), *_sums(groups, sums))
        return _loss(sums)
    return _loss(np.array([_squared_norms(vector.double().cpu().numpy(), groups) for vector in (v - sent, sent)]))


def _rounded_in_c(v: Tensor, scale: float, unit: float, key: int, out: Tensor, groups: Groups | None) -> Loss:
    real = ctypes.c_float if v.dtype is torch.float32 else ctypes.c_double
    sums = np.empty((2, 0 if groups is None else len(groups.ends)))
    _library(v).rounded(
        ctypes.c_int64(len(v)),
        _address(v),
        *(real(value) for value in (scale, unit, seeds.uniform(key))),
        ctypes.c_uint64(key),
        _address(out),
        *_sums(groups, sums),
    )
    return _loss(sums)


def _compiles(v: Tensor) -> bool:
    return v.device.type == "cpu" and compiled_c.obstacle(SOURCE, v.dtype) is None


def _library(v: Tensor) -> ctypes.CDLL:
    compiled = compiled_c.library(SOURCE, v.dtype)
    compiled.largest.restype = ctypes.c_double
    return compiled


def _address(vector: Tensor) -> ctypes.c_void_p:
    assert vector.is_contiguous()
    return ctypes.c_void_p(vector.data_ptr())


def _sums(groups: Groups | None, sums: Float64s) -> tuple[ctypes.c_int64 | ctypes.c_void_p, ...]:
    ends = 0 if groups is None else groups.ends.ctypes.data
    addresses = (ends, *(row.ctypes.data for row in sums))
    return (ctypes.c_int64(sums.shape[1]), *(ctypes.c_void_p(address) for address in addresses))


def _loss(sums: Float64s) -> Loss:
    return Loss(float(sums[0].sum()), sums[1])


def _squared_norms(vector: Float64s, groups: Groups) -> list[float]:
    """Return the sums of squares of groups, with the zeros behind each."""
    ends = groups.ends.tolist()
    return [squared_norm_by_lanes(vector[first:end]) for first, end in pairwise([0, *ends])]
