"""From recognised modules to layers with a backward of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from raysim.client.trainers.kernel.kernels import BY_TORCH, Kernels
from raysim.client.trainers.layers.attention import CausalSelfAttention
from raysim.client.trainers.layers.chain import Chain, Residual, Tied
from raysim.client.trainers.layers.conv2d import Conv2d, StackedConv2d
from raysim.client.trainers.layers.elementwise import Dropout, Flatten, Positions, Relu, Tanh
from raysim.client.trainers.layers.embedding import Embedding, StackedEmbedding
from raysim.client.trainers.layers.group_norm import GroupNorm, StackedGroupNorm
from raysim.client.trainers.layers.layer import Layer
from raysim.client.trainers.layers.layer_norm import LayerNorm, StackedLayerNorm
from raysim.client.trainers.layers.linear import Linear, StackedLinear
from raysim.client.trainers.layers.lstm import Lstm, StackedLstm
from raysim.client.trainers.layers.max_pool2d import MaxPool2d
from raysim.client.trainers.layers.packed_lstm import PackedLstm
from raysim.client.trainers.layers.parameter import Parameter
from raysim.client.trainers.recognise import Placed, every, lowest_with_parameters
from raysim.models import layers as modules
from raysim.models import lstm

Parameters = Callable[[str], Parameter]
"""Full name -> parameter."""


class _Kinds(NamedTuple):
    """The layers that differ between one client and a stack; `lead` axes of an activation come before an example's."""

    lead: int
    linear: Callable[[Parameter, Parameter | None, torch.dtype], Layer]
    tied: Callable[[Parameter, torch.dtype], Layer]
    conv2d: Callable[[nn.Conv2d, Parameter, Parameter | None, torch.dtype], Layer]
    embedding: Callable[[Parameter, int | None], Layer]
    lstm: Callable[[list[list[Parameter]], torch.dtype], Layer]
    layer_norm: Callable[[nn.LayerNorm, Parameter | None, Parameter | None, Tensor], Layer]
    group_norm: Callable[[nn.GroupNorm, Parameter | None, Parameter | None, Tensor], Layer]


def _turned_linear(weight: Parameter, bias: Parameter | None, precision: torch.dtype) -> Layer:
    return StackedLinear(weight.turned(), bias, precision)


def _one_tied(table: Parameter, precision: torch.dtype) -> Layer:
    return Linear(table, None, precision)


def _stacked_tied(table: Parameter, precision: torch.dtype) -> Layer:
    # Its rows are read by word too: it lies as everywhere else.
    return StackedLinear(table.transposed(), None, precision)


_ONE = _Kinds(1, Linear, _one_tied, Conv2d, Embedding, Lstm, LayerNorm, GroupNorm)
_STACK = _Kinds(
    2,
    _turned_linear,
    _stacked_tied,
    StackedConv2d,
    StackedEmbedding,
    StackedLstm,
    StackedLayerNorm,
    StackedGroupNorm,
)


def for_one(
    placed: Sequence[Placed],
    parameters: Parameters,
    like: Tensor,
    precision: torch.dtype,
    kernels: Kernels = BY_TORCH,
) -> list[Layer]:
    """Layers for one client after another; `like` gives dtype and device, `precision` that of large products.
    `kernels` compute convolutions that gain by it, and LSTMs over packed texts."""
    kinds = _ONE._replace(conv2d=partial(Conv2d, winograd=kernels.winograd))
    if (passes := kernels.lstm) is not None:
        kinds = kinds._replace(lstm=lambda weights, _: PackedLstm(weights, passes))
    return _layers(kinds, placed, parameters, like, precision)


def for_stack(placed: Sequence[Placed], parameters: Parameters, like: Tensor, precision: torch.dtype) -> list[Layer]:
    """Layers with a client axis; the views that `parameters` returns have it too, and the memory of those that
    `turned` names holds (in, out)."""
    return _layers(_STACK, placed, parameters, like, precision)


def turned(placed: Sequence[Placed]) -> frozenset[str]:
    """Names of the matrices that a stack holds turned."""
    return frozenset(f"{one.path}weight" for one in every(placed) if isinstance(one.module, nn.Linear))


def _layers(
    kinds: _Kinds, placed: Sequence[Placed], parameters: Parameters, like: Tensor, precision: torch.dtype
) -> list[Layer]:
    return [_layer(kinds, one, below, parameters, like, precision) for below, one in _with_below(placed)]


def _layer(
    kinds: _Kinds, one: Placed, below: nn.Module | None, parameters: Parameters, like: Tensor, precision: torch.dtype
) -> Layer:
    path, module = one.path, one.module
    match module:
        case nn.Linear():
            return kinds.linear(parameters(f"{path}weight"), _bias(path, module, parameters), precision)
        case nn.Conv2d():
            return kinds.conv2d(module, parameters(f"{path}weight"), _bias(path, module, parameters), precision)
        case nn.Embedding():
            return kinds.embedding(parameters(f"{path}weight"), module.padding_idx)
        case lstm.Lstm():
            return kinds.lstm(_weights(path, module, parameters), precision)
        case nn.LayerNorm():
            return kinds.layer_norm(module, *_affine(path, module, parameters), like)
        case nn.GroupNorm():
            return kinds.group_norm(module, *_affine(path, module, parameters), like)
        case modules.Tied():
            _, *body = one.inner
            table = parameters(f"{path}embedding.weight")
            read = kinds.embedding(table.again(), module.embedding.padding_idx)
            chain = _chain(body, _layers(kinds, body, parameters, like, precision))
            return Tied(read, chain, kinds.tied(table, precision))
        case _:
            return _other(one, below, like, kinds.lead, _layers(kinds, one.inner, parameters, like, precision))


def _other(one: Placed, below: nn.Module | None, like: Tensor, lead: int, inner: list[Layer]) -> Layer:
    """What has no parameters but those of the layers that it is made of."""
    match module := one.module:
        case nn.ReLU():
            # Outputs of products, maxima and norms are nobody else's; a view of the data, or of what tanh keeps, is.
            return Relu(in_place=isinstance(below, OVERWRITABLE))
        case nn.Tanh():
            return Tanh()
        case nn.MaxPool2d():
            return MaxPool2d(module, by_scatter=like.device.type == "cuda")
        case nn.Flatten():
            return Flatten(lead)
        case nn.Dropout():
            return Dropout(module.p, like)
        case modules.Positions():
            return Positions(module.scale)
        case modules.Residual():
            return Residual(_chain(one.inner, inner))
        case modules.CausalSelfAttention():
            return CausalSelfAttention(module.heads, *inner)
        case _:
            raise AssertionError(f"{module} was recognised, but no layer is made of it")


OVERWRITABLE = (nn.Linear, nn.Conv2d, nn.MaxPool2d, nn.LayerNorm, nn.GroupNorm)
"""Layers that do not need their own output in their backward."""


def _chain(placed: Sequence[Placed], layers: list[Layer]) -> Chain:
    return Chain(layers, lowest_with_parameters(placed))


def _bias(path: str, module: Any, parameters: Parameters) -> Parameter | None:
    return None if module.bias is None else parameters(f"{path}bias")


def _affine(path: str, module: Any, parameters: Parameters) -> tuple[Parameter | None, Parameter | None]:
    return None if module.weight is None else parameters(f"{path}weight"), _bias(path, module, parameters)


def _weights(path: str, module: lstm.Lstm, parameters: Parameters) -> list[list[Parameter]]:
    return [[parameters(f"{path}{name}") for name in own] for own in module.names]


def _with_below(placed: Sequence[Placed]) -> list[tuple[nn.Module | None, Placed]]:
    return [(placed[i - 1].module if i else None, one) for i, one in enumerate(placed)]
