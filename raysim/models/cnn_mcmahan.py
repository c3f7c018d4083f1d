"""Defines the CNN of McMahan et al. (2017): 1,663,370 parameters on 28 x 28 grey images with ten classes."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from raysim.config.section import Section
from raysim.errors import ModelError
from raysim.models.model import ModelChoice


class CnnMcmahan(ModelChoice, Section):
    """Two 5 x 5 convolutions (32 and 64 channels, same padding), each with relu and 2 x 2 pooling; 512 hidden units.

    Departure: the paper names the layers but not their padding; "same" gives its parameter count.
    """

    name: Literal["cnn_mcmahan"] = "cnn_mcmahan"


def make(section: CnnMcmahan, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for images of shape (batch, channels, height, width)."""
    if len(x_shape) != 3 or min(x_shape[1:]) < 4:
        raise ModelError(f"cnn_mcmahan takes images (channels, height >= 4, width >= 4), but x has shape {x_shape}.")
    channels, height, width = x_shape
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 32, 5, padding=2),
            act1=nn.ReLU(),
            pool1=nn.MaxPool2d(2),
            conv2=nn.Conv2d(32, 64, 5, padding=2),
            act2=nn.ReLU(),
            pool2=nn.MaxPool2d(2),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * (height // 4) * (width // 4), 512),
            act3=nn.ReLU(),
            fc2=nn.Linear(512, outputs),
        )
    )
