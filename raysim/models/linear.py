"""Defines the linear model: multinomial logistic regression, or least squares for real targets."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from pydantic import Field
from torch import nn

from raysim.config.section import Section
from raysim.models.flat import num_inputs
from raysim.models.model import ModelChoice


class Linear(ModelChoice, Section):
    """`outputs = W flatten(x) + b`."""

    name: Literal["linear"] = "linear"
    bias: bool = Field(True, description="Whether there is a `b`.")


def make(section: Linear, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for inputs of shape (batch, *x_shape)."""
    fc = nn.Linear(num_inputs(section.name, x_shape), outputs, section.bias)
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=fc))


def is_without_bias(module: nn.Module) -> bool:
    """Return whether the module computes `W flatten(x)`.

    >>> is_without_bias(nn.Linear(3, 1, bias=False)), is_without_bias(nn.Sequential(nn.Linear(3, 1), nn.Tanh()))
    (True, False)
    """
    *before, last = module if isinstance(module, nn.Sequential) else [module]
    return all(type(each) is nn.Flatten for each in before) and type(last) is nn.Linear and last.bias is None
