"""Defines the convolutional network of TensorFlow's tutorial for CIFAR-10, which McMahan et al. (2017) use.

It has 1,068,298 parameters on 24 x 24 colour images; the paper states about 10^6.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Literal

from torch import nn

from raysim.config.section import Section
from raysim.errors import ModelError
from raysim.models.model import ModelChoice


class CnnTutorial(ModelChoice, Section):
    """Two 5 x 5 convolutions of 64 channels, each with relu, 3 x 3 pooling by 2 and local response normalisation (after
    the first pooling, before the second), then 384 and 192 hidden units.

    Departures: the tutorial decays the weights of the hidden layers only, a client's weight decay applies to all
    weights; and pooling windows of even sizes begin one pixel earlier than in TensorFlow.
    """

    name: Literal["cnn_tutorial"] = "cnn_tutorial"


def make(section: CnnTutorial, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for images of shape (batch, channels, height, width)."""
    if len(x_shape) != 3 or min(x_shape[1:]) < 4:
        raise ModelError(f"cnn_tutorial takes images (channels, height >= 4, width >= 4), but x has shape {x_shape}.")
    channels, height, width = x_shape
    # Each pooling halves the size, rounded up.
    high, wide = (math.ceil(math.ceil(size / 2) / 2) for size in (height, width))
    return nn.Sequential(
        OrderedDict(
            conv1=nn.Conv2d(channels, 64, 5, padding=2),
            act1=nn.ReLU(),
            pool1=nn.MaxPool2d(3, 2, padding=1),
            norm1=_response_norm(),
            conv2=nn.Conv2d(64, 64, 5, padding=2),
            act2=nn.ReLU(),
            norm2=_response_norm(),
            pool2=nn.MaxPool2d(3, 2, padding=1),
            flatten=nn.Flatten(),
            fc1=nn.Linear(64 * high * wide, 384),
            act3=nn.ReLU(),
            fc2=nn.Linear(384, 192),
            act4=nn.ReLU(),
            fc3=nn.Linear(192, outputs),
        )
    )


def _response_norm() -> nn.Module:
    """Return the layer x / (1 + .001 / 9 * sum of squares over 4 channels either side)^.75; torch averages the sum."""
    return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)
