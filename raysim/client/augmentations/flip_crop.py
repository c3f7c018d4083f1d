"""Random flips and shifts, each with some probability; images are evaluated as they are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field
from torch import Tensor
from torch.nn.functional import pad

from raysim.arrays import UInt64s
from raysim.client.augmentations import images
from raysim.config.section import Section
from raysim.config.values import Width


class FlipCrop(Section):
    """Left and right are exchanged, and the image is moved, what comes in being 0. The two are independent.

    Source: Varno et al. 2022 (AdaBest), which flips and crops with probability one half; they do not give the width of
    the padding, and 4 is the usual one (He et al. 2016).
    """

    name: Literal["flip_crop"] = "flip_crop"
    probability: float = Field(0.5, ge=0, le=1, description="Probability of each of the two.")
    padding: Width = Field(4, description="Pixels by which an image is shifted at most, in each direction.")


def train(section: FlipCrop, x: Tensor, keys: UInt64s) -> Tensor:
    """Augmented images, in fresh memory."""
    x = images.flipped(x, images.uniform(keys, 0) < section.probability)
    top, left = (images.below(keys, draw, 2 * section.padding + 1) for draw in (1, 2))
    moved = images.cropped(pad(x, [section.padding] * 4), top, left, x.shape[-2], x.shape[-1])
    return images.chosen(images.uniform(keys, 3) < section.probability, moved, x)
