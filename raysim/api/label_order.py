"""Looks whether the labels of other data are those of a run's data in another order, such as by other names of classes.

As for orders of features (feature_order.py), means of classes are compared: here of each class with every other one.
"""

from __future__ import annotations

import numpy as np

from raysim.api.class_means import ClassMeans, Floats, class_means
from raysim.api.likeness import listed
from raysim.data import FederatedDataset

CLASSES = 200
"""Classes that are compared, the largest ones."""

FAR, NEARER, NEAR = 10.0, 10.0, 10.0
"""Labels are others where data differ by more than `FAR` as they come, and by less than `NEAR` in the order that fits
best, and that is nearer by this factor."""


def remark(own: FederatedDataset, other: FederatedDataset) -> str | None:
    """Return which classes of the other data look like others of the run's own; None if none does, or for a
    regression."""
    both = None if own.num_classes is None else class_means(own, other, CLASSES)
    if both is None:
        return None
    mine, its = both
    if len(mine.labels) < 2 or (as_they_come := mine.distance(its)) < FAR:
        return None
    moved, distance = _assigned(mine, its)
    if not moved or distance > min(NEAR, as_they_come / NEARER):
        return None
    return f"classes of the data look like others of the run's own: {listed(moved)}"


def _assigned(mine: ClassMeans, its: ClassMeans) -> tuple[list[tuple[int, int]], float]:
    """Return the labels whose classes look like others in the order that fits best, and how far these are."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    costs = np.stack([_costs(mine, its, row) for row in range(len(its.labels))])
    at, like = linear_sum_assignment(costs)
    # A class stays what it is unless another one is nearer for sure.
    moved = [
        (int(its.labels[a]), int(mine.labels[b]))
        for a, b in zip(at, like, strict=True)
        if costs[a, b] < costs[a, a] / NEARER
    ]
    return sorted(moved), float(costs[at, like].mean())


def _costs(mine: ClassMeans, its: ClassMeans, row: int) -> Floats:
    """Return how far a class of the other data is from each of the run's own."""
    far: Floats = (mine.means - its.means[row]) ** 2 / (mine.errors + its.errors[row])
    means: Floats = far.reshape(len(far), -1).mean(axis=1)
    return means
