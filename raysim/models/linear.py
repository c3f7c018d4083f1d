"""Defines the linear model: multinomial logistic regression, or least squares for real targets."""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Literal

from torch import nn

from raysim.models.model import ModelChoice


class Linear(ModelChoice):
    """`outputs = W flatten(x) + b`."""

    name: Literal["linear"] = "linear"


def make(section: Linear, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for inputs of shape (batch, *x_shape)."""
    return nn.Sequential(OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(math.prod(x_shape), outputs)))
