"""Looks whether the labels of other data are those of a run's data in another order, such as by other names of classes.

As for orders of features (feature_order.py), means of classes are compared: here of each class with every other one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raysim.api.class_means import ClassMeans, Floats, class_means
from raysim.api.likeness import listed
from raysim.data import FederatedDataset

CLASSES = 200
"""Classes that are compared, the largest ones."""


class Bounds(NamedTuple):
    """Labels are others where data differ by more than `far` as they come, and by less than `near` in the order that
    fits best, and that is nearer by the factor `nearer`."""

    far: float
    nearer: float
    near: float


OF_VALUES, OF_NAMES = Bounds(10.0, 10.0, 10.0), Bounds(2.0, 4.0, 2.0)
"""Counts of names differ less between classes, and less by chance."""


def remark(own: FederatedDataset, other: FederatedDataset, of_names: bool = False) -> str | None:
    """Return which classes of the other data look like others of the run's own; None if none does, or for a regression.

    `of_names`: x has names, as those of tokens.
    """
    both = None if own.num_classes is None else class_means(own, other, CLASSES, of_names)
    if both is None or len(both[0].labels) < 2:
        return None
    moved = _moved(*both, OF_NAMES if of_names else OF_VALUES)
    return f"classes of the data look like others of the run's own: {listed(moved)}" if moved else None


def _moved(mine: ClassMeans, its: ClassMeans, bounds: Bounds) -> list[tuple[int, int]]:
    """Return the labels whose classes look like others in the order that fits best; none if it does not fit."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    costs = np.stack([_costs(mine, its, row) for row in range(len(its.labels))])
    at, like = linear_sum_assignment(costs)
    # A class stays what it is unless another one is nearer for sure.
    moved = [a for a in at.tolist() if costs[a, like[a]] < costs[a, a] / bounds.nearer]
    if not moved or costs[at, like].mean() > bounds.near or costs[moved, moved].mean() < bounds.far:
        return []
    return sorted((int(its.labels[a]), int(mine.labels[like[a]])) for a in moved)


def _costs(mine: ClassMeans, its: ClassMeans, row: int) -> Floats:
    """Return how far a class of the other data is from each of the run's own."""
    far: Floats = (mine.means - its.means[row]) ** 2 / (mine.errors + its.errors[row])
    means: Floats = far.reshape(len(far), -1).mean(axis=1)
    return means
