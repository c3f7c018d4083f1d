"""From recognised modules to layers with a backward of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raysim.client.forms.layers.conv2d import Conv2d, StackedConv2d
from raysim.client.forms.layers.dropout import Dropout
from raysim.client.forms.layers.flatten import Flatten
from raysim.client.forms.layers.layer import Layer
from raysim.client.forms.layers.linear import Linear, StackedLinear
from raysim.client.forms.layers.max_pool2d import MaxPool2d
from raysim.client.forms.layers.parameter import Parameter
from raysim.client.forms.layers.relu import Relu
from raysim.client.forms.layers.tanh import Tanh
from raysim.client.forms.recognise import Placed

Parameters = Callable[[str], Parameter]
"""Full name -> parameter."""


def for_one(placed: Sequence[Placed], parameters: Parameters, like: Tensor, precision: torch.dtype) -> list[Layer]:
    """Layers for one client after another; `like` gives dtype and device, `precision` that of large products."""
    layers: list[Layer] = []
    for below, one in _with_below(placed):
        path, module = one.path, one.module
        match module:
            case nn.Linear():
                layer: Layer = Linear(*_two(path, module, parameters), precision)
            case nn.Conv2d():
                layer = Conv2d(module, *_two(path, module, parameters), precision)
            case _:
                layer = _without_parameters(module, below, like, lead=1)
        layers.append(layer)
    return layers


def for_stack(placed: Sequence[Placed], parameters: Parameters, like: Tensor) -> list[Layer]:
    """Layers with a client axis; the views that `parameters` returns have it too."""
    layers: list[Layer] = []
    for below, one in _with_below(placed):
        path, module = one.path, one.module
        match module:
            case nn.Linear():
                layer: Layer = StackedLinear(*_two(path, module, parameters))
            case nn.Conv2d():
                layer = StackedConv2d(module, *_two(path, module, parameters))
            case _:
                layer = _without_parameters(module, below, like, lead=2)
        layers.append(layer)
    return layers


def _without_parameters(module: nn.Module, below: nn.Module | None, like: Tensor, lead: int) -> Layer:
    match module:
        case nn.ReLU():
            # Outputs of products and maxima are nobody else's; a view of the data, or of what tanh keeps, is.
            return Relu(in_place=isinstance(below, nn.Linear | nn.Conv2d | nn.MaxPool2d))
        case nn.Tanh():
            return Tanh()
        case nn.MaxPool2d():
            return MaxPool2d(module)
        case nn.Flatten():
            return Flatten(lead)
        case nn.Dropout():
            return Dropout(module.p, like)
        case _:
            raise AssertionError(f"{module} was recognised, but no layer is made of it")


def _two(path: str, module: Any, parameters: Parameters) -> tuple[Parameter, Parameter | None]:
    return parameters(f"{path}weight"), None if module.bias is None else parameters(f"{path}bias")


def _with_below(placed: Sequence[Placed]) -> list[tuple[nn.Module | None, Placed]]:
    return [(placed[i - 1].module if i else None, one) for i, one in enumerate(placed)]
