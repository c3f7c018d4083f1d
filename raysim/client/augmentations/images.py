"""Transforms images (n, channels, height, width) with values in 0..1; each image has separate draws."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from raysim import seeds
from raysim.arrays import UInt64s


def uniform(keys: UInt64s, draw: int) -> Tensor:
    """Return draw number `draw` of each key: float64 in [0, 1), (n,)."""
    bits = seeds.derive(keys, draw) >> np.uint64(11)
    return torch.from_numpy(bits.astype(np.float64) * 2.0**-53)


def below(keys: UInt64s, draw: int, bound: int) -> Tensor:
    """Return draw number `draw` of each key: int64 in 0..bound - 1, (n,)."""
    return (uniform(keys, draw) * bound).to(torch.int64)


def cropped(x: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """Cut a window out of each image, at the image's row and column."""
    rows = (top[:, None] + torch.arange(height)).to(x.device)
    columns = (left[:, None] + torch.arange(width)).to(x.device)
    images = torch.arange(len(x), device=x.device)
    channels = torch.arange(x.shape[1], device=x.device)
    return x[images[:, None, None, None], channels[None, :, None, None], rows[:, None, :, None], columns[:, None, None]]


def central(x: Tensor, side: int) -> Tensor:
    """Cut out the middle window of every image."""
    top, left = (x.shape[-2] - side) // 2, (x.shape[-1] - side) // 2
    return x[..., top : top + side, left : left + side].contiguous()


def flipped(x: Tensor, which: Tensor) -> Tensor:
    """Exchange left and right in the images that `which` (n,) selects."""
    return torch.where(_per_image(which, x), x.flip(-1), x)


def chosen(which: Tensor, there: Tensor, here: Tensor) -> Tensor:
    """Return `there` for the images that `which` (n,) selects, else `here`."""
    return torch.where(_per_image(which, here), there, here)


def adjusted(x: Tensor, brightness: Tensor, contrast: Tensor) -> Tensor:
    """x + brightness, then each channel moved away from its mean by the factor: (x - mean) contrast + mean."""
    brighter = x + _per_image(brightness.to(x.dtype), x)
    mean = brighter.mean((-2, -1), keepdim=True)
    return (brighter - mean) * _per_image(contrast.to(x.dtype), x) + mean


def whitened(x: Tensor) -> Tensor:
    """(x - mean) / max(std, 1 / (255 sqrt(N))) of each image, over all its N numbers.

    tf.image.per_image_standardization, whose bound is on values in 0..255.
    """
    axes = (-3, -2, -1)
    mean, std = x.mean(axes, keepdim=True), x.std(axes, correction=0, keepdim=True)
    return (x - mean) / std.clamp_min(1 / (255 * math.sqrt(x[0].numel())))


def _per_image(values: Tensor, x: Tensor) -> Tensor:
    return values.to(x.device).view(-1, 1, 1, 1)
