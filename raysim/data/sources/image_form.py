"""What is done to a source's images once, before they are stored."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def central_crop(x: npt.NDArray[np.uint8], side: int) -> npt.NDArray[np.uint8]:
    """The middle `side` rows and columns of images (n, channels, height, width); of an odd rest the lower half is
    cut off above and left, as TensorFlow's resize_with_crop_or_pad does."""
    top, left = (x.shape[2] - side) // 2, (x.shape[3] - side) // 2
    return np.ascontiguousarray(x[:, :, top : top + side, left : left + side])


def standardised(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """(x - mean) / max(std, 1 / sqrt(numbers)) of each image on its own: tf.image.per_image_standardization.

    Mean and standard deviation are over all numbers of an image, n of them; the bound keeps an even image finite.
    """
    pixels = x.astype(np.float32)
    axes = (1, 2, 3)
    mean, std = pixels.mean(axes, keepdims=True), pixels.std(axes, keepdims=True)
    lowest = np.float32(1 / np.sqrt(np.prod(x.shape[1:])))
    made: npt.NDArray[np.float32] = (pixels - mean) / np.maximum(std, lowest)
    return made
