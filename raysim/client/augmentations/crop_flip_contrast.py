"""Augments images as TensorFlow's tutorial for CIFAR-10 does: smaller crops, flips, brightness, contrast, whitening.

McMahan et al. follow that tutorial."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor

from raysim.arrays import UInt64s
from raysim.client.augmentations import images
from raysim.config.section import Section
from raysim.config.values import Width


class CropFlipContrast(Section):
    """A random window, flipped with probability one half, brighter or darker, with another contrast, then whitened. For
    evaluation: the central window, whitened.

    Source: McMahan et al. 2017, section 3, on CIFAR-10; the numbers are the tutorial's, whose brightness is 63 of 255.
    """

    name: Literal["crop_flip_contrast"] = "crop_flip_contrast"
    side: Width = Field(24, description="Side of the windows in pixels, the input size of the model.")
    brightness: float = Field(
        63 / 255, ge=0, le=1e6, description="Largest absolute value added to the pixels, which are in 0..1."
    )
    contrast_low: float = Field(0.2, ge=0, le=1e6, description="Smallest factor of the contrast.")
    contrast_high: float = Field(1.8, ge=0, le=1e6, description="Largest factor of the contrast.")


def train(section: CropFlipContrast, x: Tensor, keys: UInt64s) -> Tensor:
    """Augmented images, (n, channels, side, side)."""
    top, left = (
        images.below(keys, draw, size - section.side + 1) for draw, size in ((0, x.shape[-2]), (1, x.shape[-1]))
    )
    x = images.cropped(x, top, left, section.side, section.side)
    x = images.flipped(x, images.uniform(keys, 2) < 0.5)
    brightness = (2 * images.uniform(keys, 3) - 1) * section.brightness
    low, high = section.contrast_low, section.contrast_high
    return images.whitened(images.adjusted(x, brightness, low + (high - low) * images.uniform(keys, 4)))


def evaluate(section: CropFlipContrast, x: Tensor) -> Tensor:
    """The central windows, whitened."""
    return images.whitened(images.central(x, section.side))
