"""A convolution whose passes are computed in C where that gains, as one node of autograd's graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
"""Of the maps, by torch's function."""

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
    call = _call_of(axes, args, named)
    if call is None or not call.fits or not all(one is None or _is_plain(one, dtype) for one in call[:3]):
        return None
    passes = _passes(call, kernels)
    if passes is None:
        return None
    made: Tensor = _Convolution.apply(*call, passes)  # type: ignore[no-untyped-call]
    return made


class _How(NamedTuple):
    """Of a convolution, as torch's operators take it."""

    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    more_behind: Sequence[int]
    groups: int


class _Call(NamedTuple):
    """A convolution of x (N, C, ...) with kernels w (O, C / groups, ...) and a bias (O,)."""

    x: Tensor
    w: Tensor
    bias: Tensor | None
    how: _How

    @property
    def fits(self) -> bool:
        """Whether these are maps of examples, and shapes fit one another."""
        axes, (x, w, bias, how) = 2 + len(self.how.stride), self
        if not x.dim() == w.dim() == axes or x.shape[1] != w.shape[1] * how.groups:
            return False
        return bias is None or bias.shape == w.shape[:1]


class _InC(NamedTuple):
    """What computes a convolution, and its gradients, by the arguments of torch's operators."""

    forward: Callable[..., Tensor]
    backward: Callable[..., Sequence[Tensor | None]]


def _call_of(axes: int, args: Sequence[Any], named: Mapping[str, Any]) -> _Call | None:
    """The call that these arguments make; None where torch says what is wrong."""
    given = {**dict(zip(_NAMES, args, strict=False)), **named}
    x, w, padding = given.get("input"), given.get("weight"), given.get("padding", 0)
    if not isinstance(x, Tensor) or not isinstance(w, Tensor) or given.keys() - {*_NAMES}:
        return None
    groups = given.get("groups", 1)
    stride, dilation = (_each(given.get(name, 1), axes) for name in ("stride", "dilation"))
    if padding == "same":
        reach = [by * (taps - 1) for by, taps in zip(dilation, w.shape[2:], strict=False)]
        if any(one % 2 for one in reach):
            return None
        padding = [one // 2 for one in reach]
    how = _How(stride, _each(0 if padding == "valid" else padding, axes), dilation, False, [0] * axes, groups)
    return _Call(x, w, given.get("bias"), how)


def _each(number: int | Sequence[int], axes: int) -> list[int]:
    """One for each axis."""
    given = [number] if isinstance(number, int) else [*number]
    return given * axes if len(given) == 1 else given


def _passes(call: _Call, kernels: Kernels) -> _InC | None:
    """The passes in C; None where torch's are faster."""
    x, w, _, how = call
    if x[:, 0].numel() * w.numel() < LEAST_PRODUCTS:
        return None
    is_one_apart = {*how.stride, *how.dilation, how.groups} == {1}
    if kernels.winograd is not None and is_one_apart and winograd.gains(x.shape, w.shape, how.padding):
        layout = torch.channels_last if _lies_last(x) or _lies_last(w) else torch.contiguous_format
        return _InC(*(Filtering(each, kernels.winograd, layout) for each in (_FORWARD, _BACKWARD)))
    if kernels.depthwise is not None and depthwise.is_depthwise(w.shape, how.groups) and depthwise.gains(x, w.shape):
        return _InC(_FORWARD, OwnKernels(_BACKWARD, kernels.depthwise))
    return None


def _lies_last(tensor: Tensor) -> bool:
    """Whether channels are innermost; torch's map behind lies so where either operand does."""
    is_last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return is_last and not tensor.is_contiguous()


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, how: _How, passes: _InC) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.sizes, ctx.how, ctx.back = None if bias is None else [*bias.shape], how, passes.backward
        return passes.forward(x, w, bias, *how)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (dy,), (x, w) = gradients, ctx.saved_tensors
        back = _BACKWARD if torch.is_grad_enabled() or not _is_plain(dy, w.dtype) else ctx.back
        return *back(dy, x, w, ctx.sizes, *ctx.how, [*ctx.needs_input_grad[:3]]), None, None


def _is_plain(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether its numbers lie in memory that the processor reads, as what they stand for."""
    is_here = type(tensor) in (Tensor, nn.Parameter) and tensor.dtype == dtype and tensor.device.type == "cpu"
    return is_here and tensor.layout == torch.strided and not tensor._is_zerotensor() and not tensor.is_neg()
