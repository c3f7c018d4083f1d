"""Applies the chosen augmentation in training and in evaluation.

Every visit of an example has separate draws, addressed by (seed, round, client, place among the client's visits): they
depend on neither chunk nor trainer.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field
from torch import Tensor

from raysim import seeds
from raysim.client.augmentations import crop_flip_contrast, flip_crop
from raysim.client.augmentations.crop_flip_contrast import CropFlipContrast
from raysim.client.augmentations.flip_crop import FlipCrop
from raysim.errors import ExperimentError

Augmentation = Annotated[FlipCrop | CropFlipContrast, Field(discriminator="name")]


def visits(section: FlipCrop | CropFlipContrast, x: Tensor, seed: int, round_index: int, client: int) -> Tensor:
    """Augment the examples of a client's local steps.

    Args:
        x: (visits, channels, height, width), in the order of local steps.
        seed: the experiment's.
        round_index: the round.
        client: the client's position.
    """
    keys = seeds.keys(seed, "augment", round_index, client, np.arange(len(x), dtype=np.int64))
    if isinstance(section, FlipCrop):
        return flip_crop.train(section, x, keys)
    return crop_flip_contrast.train(section, x, keys)


def for_evaluation(section: FlipCrop | CropFlipContrast | None, x: Tensor) -> Tensor:
    """Return examples x as evaluation uses them."""
    return crop_flip_contrast.evaluate(section, x) if isinstance(section, CropFlipContrast) else x


def seen_shape(section: FlipCrop | CropFlipContrast | None, x_shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of an example after augmentation.

    Raises:
        ExperimentError: the examples are not images, or smaller than `side`, or not larger than `padding`.
    """
    if section is None:
        return x_shape
    if len(x_shape) != 3:
        raise ExperimentError(f"client.augment takes images (channels, height, width), but x has shape {x_shape}.")
    if isinstance(section, FlipCrop):
        if section.padding >= min(x_shape[1:]):
            raise ExperimentError(
                f"client.augment.padding must be less than the images' {x_shape[1]} x {x_shape[2]}, or nothing of an "
                f"image is left, but is {section.padding}."
            )
        return x_shape
    if section.side > min(x_shape[1:]):
        raise ExperimentError(
            f"client.augment.side must be at most the images' {x_shape[1]} x {x_shape[2]}, but is {section.side}."
        )
    return (x_shape[0], section.side, section.side)
