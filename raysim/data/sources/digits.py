"""Reads the 1,797 handwritten digits of scikit-learn, which need no download."""

from __future__ import annotations

from typing import Literal

import numpy as np

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.data.field import Field
from raysim.data.partitioned import Partitioned
from raysim.data.source import Source, SourceExamples
from raysim.errors import DataError
from raysim.seeds import key, permutation

SHAPE = (1797, 8, 8)


class Digits(Partitioned, Section):
    """Digits of 8x8 pixels in 0..16, ten classes (test set of the UCI Optical Recognition of Handwritten Digits).

    The source has no test set: of each class's n examples, (n + 2) // 5 chosen by the data's seed are test examples.
    """

    name: Literal["digits"] = "digits"


def open_source(seed: int) -> Source:
    """Return the digits; scikit-learn has shipped the same file since 2010. `seed` is the data's."""
    return Source({"name": "digits", "package": "scikit-learn", "shape": list(SHAPE)}, lambda: load_digits(seed))


def load_digits(seed: int) -> SourceExamples:
    """Read the digits and choose the test examples.

    Returns:
        uint8 images of shape (1, 8, 8); their scale is 1/16.
    """
    from sklearn import datasets  # slow to import, and only digits need it

    bunch = datasets.load_digits()
    images, labels = np.asarray(bunch.images), np.asarray(bunch.target, np.int64)
    if images.shape != SHAPE:
        raise DataError(f"scikit-learn's digits must have shape {SHAPE}, but have {images.shape}")
    x = images.astype(np.uint8)[:, None]
    test = np.zeros(len(labels), bool)
    test[stratified_fifth(labels, seed)] = True
    return SourceExamples(
        x=Field((1, 8, 8), "uint8", scale=1 / 16),
        num_classes=10,
        train_x=x[~test],
        train_y=labels[~test],
        test_x=x[test],
        test_y=labels[test],
    )


def stratified_fifth(labels: Int64s, seed: int) -> Int64s:
    """Return indices of a random fifth of each class, (n + 2) // 5 of n examples; sorted."""
    chosen = []
    for label in np.unique(labels).tolist():
        examples = np.flatnonzero(labels == label)
        order = permutation(key(seed, "digits/test", label), len(examples))
        chosen.append(examples[order[: (len(examples) + 2) // 5]])
    return np.sort(np.concatenate(chosen)).astype(np.int64, copy=False)
