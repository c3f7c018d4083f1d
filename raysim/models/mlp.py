"""Defines the multi-layer perceptron.

McMahan et al.'s 2NN is `hidden = [200, 200]` on 784 inputs: 199,210 parameters.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import Literal

from pydantic import Field
from torch import nn

from raysim.config.section import Section
from raysim.config.values import Width
from raysim.models.flat import num_inputs
from raysim.models.model import ModelChoice


class Mlp(ModelChoice, Section):
    """Fully connected layers, each followed by the activation, then a linear layer."""

    name: Literal["mlp"] = "mlp"
    hidden: tuple[Width, ...] = Field(
        (200, 200), min_length=1, max_length=100, description="Widths of the hidden layers."
    )
    activation: Literal["relu", "tanh"] = Field("relu", description="Activation after each hidden layer.")


def make(section: Mlp, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for inputs of shape (batch, *x_shape)."""
    widths = [num_inputs(section.name, x_shape), *section.hidden]
    activation = {"relu": nn.ReLU, "tanh": nn.Tanh}[section.activation]
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    for index, (width_in, width_out) in enumerate(pairwise(widths), start=1):
        layers[f"fc{index}"] = nn.Linear(width_in, width_out)
        layers[f"act{index}"] = activation()
    layers[f"fc{len(widths)}"] = nn.Linear(widths[-1], outputs)
    return nn.Sequential(layers)
