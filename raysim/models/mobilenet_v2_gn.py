"""Defines MobileNetV2 (Sandler et al. 2018) with group norm, as in Hsu, Qi and Brown (2020) and Wang et al. (2021)."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor, nn

from raysim.config.section import Section
from raysim.config.values import Width
from raysim.errors import ModelError
from raysim.models.model import ModelChoice

_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, stride of the first: table 2 of the paper."""
_FIRST, _LAST = 32, 1280


class MobilenetV2Gn(ModelChoice, Section):
    """Seventeen inverted residual blocks between two convolutions; dropout before the linear layer.

    Every batch norm is a group norm; all channels are multiples of 8. Wang et al. have two groups and no dropout (B.2),
    Sandler et al. a dropout of 0.2.
    """

    name: Literal["mobilenet_v2_gn"] = "mobilenet_v2_gn"
    groups: Width = Field(2, description="Groups of channels in every group norm.")
    dropout: float = Field(0.0, ge=0, lt=1, description="Probability of dropout before the linear layer.")


class Inverted(nn.Module):
    """1 x 1 convolution to more channels, 3 x 3 on each alone, 1 x 1 to fewer; plus x if the shape stays."""

    def __init__(self, channels_in: int, channels: int, expansion: int, stride: int, groups: int) -> None:
        super().__init__()
        self._residual = stride == 1 and channels_in == channels
        wide = channels_in * expansion
        layers = [] if expansion == 1 else [*_normed(channels_in, wide, 1, 1, 1, groups), nn.ReLU6()]
        layers += [*_normed(wide, wide, 3, stride, wide, groups), nn.ReLU6()]
        self.layers = nn.Sequential(*layers, *_normed(wide, channels, 1, 1, 1, groups))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channels_in, h, w) -> (batch, channels, h / stride, w / stride)."""
        h: Tensor = self.layers(x)
        return h + x if self._residual else h


def _normed(channels_in: int, channels: int, size: int, stride: int, alone: int, groups: int) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels, size, stride, padding=size // 2, groups=alone, bias=False)
    return [convolution, nn.GroupNorm(groups, channels)]


def make(section: MobilenetV2Gn, x_shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Return a fresh module for images of shape (batch, channels, height, width)."""
    if len(x_shape) != 3:
        raise ModelError(f"mobilenet_v2_gn takes images (channels, height, width), but x has shape {x_shape}.")
    if 8 % section.groups:
        raise ModelError(f"model.groups must divide 8, which divides all channels, but is {section.groups}.")
    layers: list[nn.Module] = [*_normed(x_shape[0], _FIRST, 3, 2, 1, section.groups), nn.ReLU6()]
    channels_in = _FIRST
    for expansion, channels, blocks, stride in _STAGES:
        for block in range(blocks):
            layers.append(Inverted(channels_in, channels, expansion, 1 if block else stride, section.groups))
            channels_in = channels
    layers += [*_normed(channels_in, _LAST, 1, 1, 1, section.groups), nn.ReLU6()]
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(section.dropout)]
    return nn.Sequential(*layers, *pooled, nn.Linear(_LAST, outputs))
