"""Takes the means of each class of a run's data and of other data, by which orders of features and of labels show."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data import FederatedDataset

MOST, NUMBERS = 2_000, 20_000_000
"""Examples that are looked at, and numbers that these may have together."""

LEAST = 8
"""Examples that a class needs in both data."""

Floats = npt.NDArray[np.float64]


class ClassMeans(NamedTuple):
    """Means of the features by class, and the squares of their standard errors: (classes, *shape); and the labels."""

    means: Floats
    errors: Floats
    labels: Int64s

    def distance(self, other: ClassMeans) -> float:
        """Return the mean square of differences, in units of what chance makes of them: near 1 for data of one kind."""
        return float(((self.means - other.means) ** 2 / (self.errors + other.errors)).mean())


def class_means(own: FederatedDataset, other: FederatedDataset, most: int) -> tuple[ClassMeans, ClassMeans] | None:
    """Return the means of both by the `most` largest classes that both have; None if no class has enough examples.

    Targets of a regression are in four classes, by the quartiles of the run's own.
    """
    (x, y), (its_x, its_y) = _examples(own), _examples(other)
    if y.ndim != 1 or not len(x) or not len(its_x):
        return None
    if own.num_classes is None:
        ends = np.quantile(y.astype(np.float64), [0.25, 0.5, 0.75])
        y, its_y = np.searchsorted(ends, y), np.searchsorted(ends, its_y)
    labels, counts = np.unique(y, return_counts=True)
    largest = labels[np.argsort(-counts, kind="stable")]
    enough = [label for label in largest.tolist() if min((y == label).sum(), (its_y == label).sum()) >= LEAST][:most]
    if not enough:
        return None
    return _means(x, y, enough), _means(its_x, its_y, enough)


def _means(x: Floats, y: npt.NDArray[np.generic], labels: list[int]) -> ClassMeans:
    groups = [x[y == label] for label in labels]
    # Features that do not vary in a class have errors, too: others' examples may.
    errors = [(group.var(axis=0, ddof=1) + 1e-3) / len(group) for group in groups]
    return ClassMeans(np.stack([group.mean(axis=0) for group in groups]), np.stack(errors), np.array(labels, np.int64))


def _examples(dataset: FederatedDataset) -> tuple[Floats, npt.NDArray[np.generic]]:
    """Return x and y of the first training clients, x with mean 0 and deviation 1 over all features together."""
    train, every, number = dataset.train, list[tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]](), 0
    most = min(MOST, max(1, NUMBERS // math.prod(dataset.x.shape)))
    while number < most and len(every) < len(train):
        every.append(train.client(len(every)))
        number += len(every[-1][0])
    x = np.concatenate([x for x, _ in every])[:most].astype(np.float64) * dataset.x.scale
    y = np.concatenate([y for _, y in every])[:most]
    whole = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    x, y = x[whole], y[whole]
    deviation = x.std() if len(x) else 0.0
    return (x - x.mean()) / deviation if deviation > 0 else x, y
