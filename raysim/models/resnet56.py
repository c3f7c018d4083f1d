"""Defines ResNet-56 for CIFAR (He et al. 2016, section 4.2), with batch or group norm: 853,018 parameters."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import pad, relu

from raysim.config.section import Section, has_other
from raysim.config.values import Width
from raysim.errors import ModelError
from raysim.models.model import ModelChoice

_BLOCKS = 9


class Resnet56(ModelChoice, Section):
    """A 3 x 3 convolution, three stages of nine blocks with 16, 32 and 64 channels, and a linear layer: 56 layers.

    A shortcut that changes the shape takes every other pixel and adds zero channels (option A), without parameters.
    """

    name: Literal["resnet56"] = "resnet56"
    norm: Literal["batch", "group"] = Field(
        "batch", description='"batch" is the published one; its running statistics are buffers, averaged over clients.'
    )
    groups: Width = Field(2, description="Groups of channels in every group norm.")


class BatchNormBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + x), with x subsampled and padded if the shape changes."""

    def __init__(self, channels_in: int, channels: int, section: Resnet56) -> None:
        super().__init__()
        self._added = channels - channels_in
        stride = 2 if self._added else 1
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = norm(section, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = norm(section, channels)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels_in, h, w) -> (batch, channels, h, w), or half the height and width."""
        h = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        if self._added:
            x = pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self._added // 2, self._added - self._added // 2))
        return relu(torch.add(h, x))


def norm(section: Resnet56, channels: int) -> nn.Module:
    """Return the section's norm over this number of channels."""
    return nn.BatchNorm2d(channels) if section.norm == "batch" else nn.GroupNorm(section.groups, channels)


def make(section: Resnet56, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for images of shape (batch, channels, height, width)."""
    if len(x_shape) != 3:
        raise ModelError(f"resnet56 takes images (channels, height, width), but x has shape {x_shape}.")
    if section.norm == "group" and 16 % section.groups:
        raise ModelError(f"model.groups must divide 16, the channels of the first stage, but is {section.groups}.")
    if section.norm == "batch" and has_other(section, "groups"):
        raise ModelError("model.groups belongs to model.norm = 'group', but norm is 'batch': remove groups.")
    layers: list[nn.Module] = [
        nn.Conv2d(x_shape[0], 16, 3, padding=1, bias=False),
        norm(section, 16),
        nn.ReLU(),
    ]
    channels_in = 16
    for channels in (16, 32, 64):
        for _ in range(_BLOCKS):
            layers.append(BatchNormBlock(channels_in, channels, section))
            channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, outputs))
