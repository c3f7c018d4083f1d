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

LEAST, LEAST_OF_NAMES = 8, 30
"""Examples that a class needs in both data."""

TELLING, FREQUENT = 50, 1_000
"""Numbers that are counted where x has names: of the most frequent ones those that tell the run's classes apart."""

Floats = npt.NDArray[np.float64]


class ClassMeans(NamedTuple):
    """Means of the features by class, and the squares of their standard errors: (classes, *shape); and the labels."""

    means: Floats
    errors: Floats
    labels: Int64s

    def distance(self, other: ClassMeans) -> float:
        """Return the mean square of differences, in units of what chance makes of them: near 1 for data of one kind."""
        return float(((self.means - other.means) ** 2 / (self.errors + other.errors)).mean())


def class_means(
    own: FederatedDataset, other: FederatedDataset, most: int, of_names: bool = False
) -> tuple[ClassMeans, ClassMeans] | None:
    """Return the means of both by the `most` largest classes that both have; None if no class has enough examples.

    Targets of a regression are in four classes, by the quartiles of the run's own. `of_names`: x has names, as those of
    tokens; the features are how often an example has some of them.
    """
    (x, y), (its_x, its_y) = _examples(own), _examples(other)
    if y.ndim != 1 or not len(x) or not len(its_x):
        return None
    if of_names:
        names = _telling(x, y)
        x, its_x = _counted(x, names), _counted(its_x, names)
    else:
        x, its_x = _standard(x), _standard(its_x)
    if own.num_classes is None:
        ends = np.quantile(y.astype(np.float64), [0.25, 0.5, 0.75])
        y, its_y = np.searchsorted(ends, y), np.searchsorted(ends, its_y)
    labels, counts = np.unique(y, return_counts=True)
    least = LEAST_OF_NAMES if of_names else LEAST
    largest = labels[np.argsort(-counts, kind="stable")]
    enough = [label for label in largest.tolist() if min((y == label).sum(), (its_y == label).sum()) >= least][:most]
    if not enough:
        return None
    return _means(x, y, enough), _means(its_x, its_y, enough)


def _means(x: Floats, y: npt.NDArray[np.generic], labels: list[int]) -> ClassMeans:
    groups = [x[y == label] for label in labels]
    # Features that do not vary in a class have errors, too: others' examples may.
    errors = [(group.var(axis=0, ddof=1) + 1e-3) / len(group) for group in groups]
    return ClassMeans(np.stack([group.mean(axis=0) for group in groups]), np.stack(errors), np.array(labels, np.int64))


def _examples(dataset: FederatedDataset) -> tuple[Floats, npt.NDArray[np.generic]]:
    """Return x and y of the first training clients."""
    train, every, number = dataset.train, list[tuple[npt.NDArray[np.generic], npt.NDArray[np.generic]]](), 0
    most = min(MOST, max(1, NUMBERS // math.prod(dataset.x.shape)))
    while number < most and len(every) < len(train):
        every.append(train.client(len(every)))
        number += len(every[-1][0])
    x = np.concatenate([x for x, _ in every])[:most].astype(np.float64) * dataset.x.scale
    y = np.concatenate([y for _, y in every])[:most]
    whole = np.isfinite(x).all(axis=tuple(range(1, x.ndim)))
    return x[whole], y[whole]


def _standard(x: Floats) -> Floats:
    """Return x with mean 0 and deviation 1 over all features together."""
    deviation = x.std() if len(x) else 0.0
    return (x - x.mean()) / deviation if deviation > 0 else x


def _telling(x: Floats, y: npt.NDArray[np.generic]) -> Floats:
    """Return the names whose counts differ most between classes, in units of what chance makes of them."""
    names, counts = np.unique(x, return_counts=True)
    names = names[np.argsort(-counts, kind="stable")[:FREQUENT]]
    found = _counted(x, names)
    groups = [found[y == label] for label in np.unique(y)]
    between = np.stack([group.mean(axis=0) for group in groups]).var(axis=0)
    within = found.var(axis=0) + 1e-3
    return names[np.argsort(-between / within, kind="stable")[:TELLING]]


def _counted(x: Floats, names: Floats) -> Floats:
    """Return how often each example has each of the names, (examples, names)."""
    rows = x.reshape(len(x), -1)
    order = np.argsort(names, kind="stable")
    places = np.minimum(np.searchsorted(names, rows, sorter=order), len(names) - 1)
    has = names[order][places] == rows
    counts = np.zeros((len(x), len(names)))
    np.add.at(counts, (np.nonzero(has)[0], order[places[has]]), 1.0)
    return counts
