"""A convolution whose passes are computed in C where that gains, as one node of autograd's graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raysim.client.trainers.kernel import depthwise, winograd
from raysim.client.trainers.kernel.kernels import Kernels
from raysim.client.trainers.recording.minimal_filtering import Filtering
from raysim.client.trainers.recording.own_kernels import OwnKernels

_FORWARD = torch.ops.aten.convolution.default
_BACKWARD = torch.ops.aten.convolution_backward.default

AXES: Mapping[Callable[..., Any], int] = MappingProxyType({torch.conv1d: 1, torch.conv2d: 2})
"""The functions of torch that are looked at, and how many axes their maps have."""

_NAMES = "input", "weight", "bias", "stride", "padding", "dilation", "groups"

LEAST_PRODUCTS = 3_000_000
"""Of a direct convolution over a batch: with fewer, to call the node takes longer than what it saves. Forward and
backward by torch over here: 1.5 million .92, 5.9 million 1.06 and 1.21, of depthwise kernels of 7 x 7 3.0 million 2.6,
of 5 x 5 .3 million .85 (AMD EPYC, Zen 4, busy)."""


def computed(
    axes: int, args: Sequence[Any], named: Mapping[str, Any], kernels: Kernels, dtype: torch.dtype
) -> Tensor | None:
    """Return what `torch.conv1d` or `torch.conv2d` returns; None where torch is faster, or is to say what is wrong.

    A gradient that is to be differentiated itself is torch's.

    Args:
        axes: of the maps.
        args, named: its arguments.
        kernels: those to use.
        dtype: of the numbers that they take.
    """
    given = {**dict(zip(_NAMES, args, strict=False)), **named}
    x, w, bias = _plain(given.get("input"), dtype), _plain(given.get("weight"), dtype), given.get("bias")
    if x is None or w is None or not x.dim() == w.dim() == 2 + axes:
        return None
    if x.shape[0] * prod(x.shape[2:]) * w.numel() < LEAST_PRODUCTS:
        return None
    geometry = _geometry(axes, given, w.shape)
    if geometry is None or len(args) > len(_NAMES) or given.keys() - {*_NAMES}:
        return None
    fits_bias = bias is None or (_plain(bias, dtype) is not None and bias.shape == w.shape[:1])
    if not fits_bias or x.shape[1] != w.shape[1] * geometry.groups or min(geometry.padding) < 0:
        return None
    passes = _passes(x, w, geometry, kernels)
    if passes is None:
        return None
    made: Tensor = _Convolution.apply(x, w, bias, geometry, passes)  # type: ignore[no-untyped-call]
    return made


class _Geometry(NamedTuple):
    """Of a convolution, as torch's operators take it."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


class _ConvolutionPasses(NamedTuple):
    """What computes a convolution, and its gradients, by the arguments of torch's operators."""

    forward: Callable[..., Tensor]
    backward: Callable[..., Sequence[Tensor | None]]


def _geometry(axes: int, given: Mapping[str, Any], w: Sequence[int]) -> _Geometry | None:
    """The geometry that these arguments give; None where torch reads them."""
    padding, groups = given.get("padding", 0), given.get("groups", 1)
    stride, dilation = (_each(given.get(name, 1), axes) for name in ("stride", "dilation"))
    if stride is None or dilation is None or type(groups) is not int:
        return None
    reach = [by * (taps - 1) for by, taps in zip(dilation, w[2:], strict=True)]
    if padding == "same" and {*stride} == {1} and not any(one % 2 for one in reach):
        padding = [one // 2 for one in reach]
    margins = _each(0 if padding == "valid" else padding, axes)
    return None if margins is None else _Geometry(stride, margins, dilation, False, [0] * axes, groups)


def _each(given: Any, axes: int) -> list[int] | None:
    """One number for each axis; None where it is none of the usual ways to write them."""
    numbers = [given] if type(given) is int else [*given] if isinstance(given, list | tuple) else []
    if len(numbers) not in (1, axes) or any(type(one) is not int for one in numbers):
        return None
    return numbers * axes if len(numbers) == 1 else numbers


def _passes(x: Tensor, w: Tensor, geometry: _Geometry, kernels: Kernels) -> _ConvolutionPasses | None:
    """The passes in C; None where torch's are faster."""
    is_one_apart = {*geometry.stride, *geometry.dilation, geometry.groups} == {1}
    if kernels.winograd is not None and is_one_apart and winograd.gains(x.shape, w.shape, geometry.padding):
        layout = torch.channels_last if _lies_last(x) or _lies_last(w) else torch.contiguous_format
        return _ConvolutionPasses(*(Filtering(each, kernels.winograd, layout) for each in (_FORWARD, _BACKWARD)))
    is_by_channel = depthwise.is_depthwise(w.shape, geometry.groups) and depthwise.gains(x, w.shape)
    if kernels.depthwise is not None and is_by_channel and w.requires_grad:
        return _ConvolutionPasses(_FORWARD, OwnKernels(_BACKWARD, kernels.depthwise))
    return None


def _lies_last(tensor: Tensor) -> bool:
    """Whether channels are innermost; torch's map behind lies so where either operand does."""
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return is_last and not tensor.is_contiguous()


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, geometry: _Geometry, passes: _ConvolutionPasses
    ) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.set_materialize_grads(False)
        ctx.sizes, ctx.geometry, ctx.back = None if bias is None else [*bias.shape], geometry, passes.backward
        return passes.forward(x, w, bias, *geometry)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        (dy,), (x, w) = gradients, ctx.saved_tensors
        if dy is None:
            # Nothing behind depends on it, as torch's node has it.
            return (None,) * 5
        back = _BACKWARD if torch.is_grad_enabled() or _plain(dy, w.dtype) is None else ctx.back
        return *back(dy, x, w, ctx.sizes, *ctx.geometry, [*ctx.needs_input_grad[:3]]), None, None


def _plain(value: Any, dtype: torch.dtype) -> Tensor | None:
    """The value if it is a tensor whose numbers lie in memory that the processor reads, as what they stand for."""
    if type(value) not in (Tensor, nn.Parameter) or value.dtype != dtype or value.device.type != "cpu":
        return None
    has_numbers = value.layout == torch.strided and not value._is_zerotensor() and not value.is_neg()
    return value if has_numbers else None
