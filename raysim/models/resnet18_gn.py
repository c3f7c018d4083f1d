"""Defines ResNet-18 with group norm, for small images (Hsieh et al. 2020; Reddi et al. 2021).

It has 11,220,132 parameters at 100 classes.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import relu

from raysim.config.section import Section
from raysim.config.values import Width
from raysim.errors import ModelError
from raysim.models.model import ModelChoice


class Resnet18Gn(ModelChoice, Section):
    """Four stages of two blocks, 64 to 512 channels, with group norms.

    Departures from ImageNet's: the first convolution is 3 x 3 with stride 1 and there is no pooling after it, as usual
    for images of 24 or 32 pixels; a block that changes the shape has a 1 x 1 convolution and a norm beside it.
    """

    name: Literal["resnet18_gn"] = "resnet18_gn"
    groups: Width = Field(2, description="Groups of channels in every group norm.")


class GroupNormBlock(nn.Module):
    """relu(norm(conv(relu(norm(conv(x))))) + shortcut(x))."""

    def __init__(self, channels_in: int, channels: int, stride: int, groups: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(groups, channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(groups, channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.GroupNorm(groups, channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels_in, h, w) -> (batch, channels, h / stride, w / stride)."""
        h = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(h)) + self.shortcut(x))


def make(section: Resnet18Gn, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for images of shape (batch, channels, height, width)."""
    if len(x_shape) != 3:
        raise ModelError(f"resnet18_gn takes images (channels, height, width), but x has shape {x_shape}.")
    if 64 % section.groups:
        raise ModelError(f"model.groups must divide 64, the channels of the first stage, but is {section.groups}.")
    layers: list[nn.Module] = [
        nn.Conv2d(x_shape[0], 64, 3, padding=1, bias=False),
        nn.GroupNorm(section.groups, 64),
        nn.ReLU(),
    ]
    channels_in = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            layers.append(GroupNormBlock(channels_in, channels, stride, section.groups))
            channels_in = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))
