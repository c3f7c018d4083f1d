"""Defines the EMNIST network of Reddi et al., Adaptive Federated Optimization (2021), table 4: 1,206,590 parameters."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from raysim.config.section import Section
from raysim.errors import ModelError
from raysim.models.model import ModelChoice


class Cnn(ModelChoice, Section):
    """Two 3 x 3 convolutions (32 and 64 channels, no padding), pooling, dropout .25, 128 hidden units, dropout .5.

    The count is for 28 x 28 grey images with 62 classes; with ten it is 1,199,882.
    """

    name: Literal["cnn"] = "cnn"


def make(section: Cnn, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for images of shape (batch, channels, height, width)."""
    if len(x_shape) != 3 or min(x_shape[1:]) < 6:
        raise ModelError(f"cnn takes images (channels, height >= 6, width >= 6), but x has shape {x_shape}.")
    channels, height, width = x_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 3),
            act1=nn.ReLU(),
            conv2=nn.Conv2d(32, 64, 3),
            act2=nn.ReLU(),
            pool=nn.MaxPool2d(2),
            drop1=nn.Dropout(0.25),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * ((height - 4) // 2) * ((width - 4) // 2), 128),
            act3=nn.ReLU(),
            drop2=nn.Dropout(0.5),
            fc2=nn.Linear(128, outputs),
        )
    )
