"""From recognised modules to layers with a backward of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raysim.client.forms.layers.attention import CausalSelfAttention
from raysim.client.forms.layers.chain import Chain
from raysim.client.forms.layers.conv2d import Conv2d, StackedConv2d
from raysim.client.forms.layers.dropout import Dropout
from raysim.client.forms.layers.embedding import Embedding, StackedEmbedding
from raysim.client.forms.layers.flatten import Flatten
from raysim.client.forms.layers.group_norm import GroupNorm, StackedGroupNorm
from raysim.client.forms.layers.layer import Layer
from raysim.client.forms.layers.layer_norm import LayerNorm, StackedLayerNorm
from raysim.client.forms.layers.linear import Linear, StackedLinear
from raysim.client.forms.layers.lstm import Lstm
from raysim.client.forms.layers.max_pool2d import MaxPool2d
from raysim.client.forms.layers.parameter import Parameter
from raysim.client.forms.layers.positions import Positions
from raysim.client.forms.layers.relu import Relu
from raysim.client.forms.layers.residual import Residual
from raysim.client.forms.layers.stacked_lstm import StackedLstm
from raysim.client.forms.layers.tanh import Tanh
from raysim.client.forms.layers.tied import Tied
from raysim.client.forms.recognise import Placed, lowest_with_parameters
from raysim.models import attention, lstm, positions, residual, tied

Parameters = Callable[[str], Parameter]
"""Full name -> parameter."""


def for_one(placed: Sequence[Placed], parameters: Parameters, like: Tensor, precision: torch.dtype) -> list[Layer]:
    """Layers for one client after another; `like` gives dtype and device, `precision` that of large products."""
    layers: list[Layer] = []
    for below, one in _with_below(placed):
        path, module = one.path, one.module
        match module:
            case nn.Linear():
                layer: Layer = Linear(parameters(f"{path}weight"), _bias(path, module, parameters), precision)
            case nn.Conv2d():
                layer = Conv2d(module, parameters(f"{path}weight"), _bias(path, module, parameters), precision)
            case nn.Embedding():
                layer = Embedding(parameters(f"{path}weight"), module.padding_idx)
            case lstm.Lstm():
                layer = Lstm(module.hidden, _weights(path, module, parameters), precision)
            case nn.LayerNorm():
                layer = LayerNorm(module, *_affine(path, module, parameters), like)
            case nn.GroupNorm():
                layer = GroupNorm(module, *_affine(path, module, parameters), like)
            case tied.Tied():
                _, *body = one.inner
                table = parameters(f"{path}embedding.weight")
                chain = _chain(body, for_one(body, parameters, like, precision))
                layer = Tied(
                    Embedding(table.again(), module.embedding.padding_idx), chain, Linear(table, None, precision)
                )
            case _:
                layer = _other(one, below, like, 1, for_one(one.inner, parameters, like, precision))
        layers.append(layer)
    return layers


def for_stack(placed: Sequence[Placed], parameters: Parameters, like: Tensor, precision: torch.dtype) -> list[Layer]:
    """Layers with a client axis; the views that `parameters` returns have it too."""
    layers: list[Layer] = []
    for below, one in _with_below(placed):
        path, module = one.path, one.module
        match module:
            case nn.Linear():
                layer: Layer = StackedLinear(parameters(f"{path}weight"), _bias(path, module, parameters), precision)
            case nn.Conv2d():
                layer = StackedConv2d(module, parameters(f"{path}weight"), _bias(path, module, parameters), precision)
            case nn.Embedding():
                layer = StackedEmbedding(parameters(f"{path}weight"), module.padding_idx)
            case lstm.Lstm():
                layer = StackedLstm(_weights(path, module, parameters), precision)
            case nn.LayerNorm():
                layer = StackedLayerNorm(module, *_affine(path, module, parameters), like)
            case nn.GroupNorm():
                layer = StackedGroupNorm(module, *_affine(path, module, parameters), like)
            case tied.Tied():
                _, *body = one.inner
                table = parameters(f"{path}embedding.weight")
                chain = _chain(body, for_stack(body, parameters, like, precision))
                layer = Tied(
                    StackedEmbedding(table.again(), module.embedding.padding_idx),
                    chain,
                    StackedLinear(table, None, precision),
                )
            case _:
                layer = _other(one, below, like, 2, for_stack(one.inner, parameters, like, precision))
        layers.append(layer)
    return layers


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
        case positions.Positions():
            return Positions(module.scale)
        case residual.Residual():
            return Residual(_chain(one.inner, inner))
        case attention.CausalSelfAttention():
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
