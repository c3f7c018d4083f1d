"""Looks whether x of other data has the features of a run's data in another order, such as swapped colour channels.

Compared are the means of each feature over the examples of a class, in units of what chance makes of them:

    d = mean over classes c and features f of (m_cf - m'_cf)^2 / (v_cf / n_c + v'_cf / n'_c)

with means m, variances v of one example, and n examples. Data of one kind have d near 1, and data of another kind a
large one, in whatever order. So an order is named where d is large as the data come, and small in that order. Class
means do not depend on which classes the looked-at clients have.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from raysim.api.class_means import ClassMeans, Floats, class_means
from raysim.api.likeness import listed
from raysim.data import FederatedDataset

CLASSES = 10
"""Classes that are compared, the largest ones."""

CHANNELS, FEATURES, OF_TWO = 4, 1_000, 100
"""Axes up to this length are tried in all orders. Rows up to this length, or this one with two classes, are tried
in the order that fits best."""

FAR, NEARER = 2.0, 2.0
"""From this d on data differ, and by this factor another order fits better: of the few of an image, ..."""

FAR_OF_ALL, NEARER_OF_ALL = 10.0, 10.0
"""... and of all orders of a row, of which the best one fits better by chance, too."""

NEAR = 10.0
"""In the order that is named d is below this: other data may fit better in it, and are other data."""


class FeatureOrder(NamedTuple):
    """An order of an image's features: axes that change their places, are mirrored, and whose entries change theirs."""

    axes: tuple[int, ...]
    mirrored: tuple[int, ...]
    channels: tuple[int, tuple[int, ...]] | None

    def of(self, values: Floats) -> Floats:
        """Return (classes, *shape) in this order."""
        found = values.transpose(0, *(axis + 1 for axis in self.axes))
        found = np.flip(found, tuple(axis + 1 for axis in self.mirrored))
        return found if self.channels is None else np.take(found, self.channels[1], self.channels[0] + 1)

    def of_classes(self, its: ClassMeans) -> ClassMeans:
        """Return the means of classes in this order."""
        return its._replace(means=self.of(its.means), errors=self.of(its.errors))

    def __str__(self) -> str:
        exchanged = [str(axis) for axis, its in enumerate(self.axes) if axis != its]
        said = [f"axes {' and '.join(exchanged)} exchanged"] if exchanged else []
        said += [f"axis {axis} mirrored" for axis in self.mirrored]
        if self.channels is not None and self.channels[1] != tuple(sorted(self.channels[1])):
            said.append(f"axis {self.channels[0]} in the order {', '.join(map(str, self.channels[1]))}")
        return " and ".join(said)


def remark(own: FederatedDataset, other: FederatedDataset) -> str | None:
    """Return in which order the other data's features look like the run's own; None if in theirs, or in none."""
    both = class_means(own, other, CLASSES)
    if both is None:
        return None
    mine, its = both
    as_they_come = mine.distance(its)
    if len(own.x.shape) > 1:
        distances = [(mine.distance(order.of_classes(its)), order) for order in _orders(own.x.shape)]
        found = min(distances, key=lambda pair: pair[0], default=None)
        if found is None or as_they_come < FAR or found[0] > min(NEAR, as_they_come / NEARER):
            return None
        return f"x of the data looks like that of the run's own with {found[1]}"
    classes = len(mine.means)
    if not 1 < own.x.shape[0] <= (FEATURES if classes > 2 else OF_TWO) or classes < 2 or as_they_come < FAR_OF_ALL:
        return None
    moved, distance = _assigned(mine, its)
    if not moved or distance > min(NEAR, as_they_come / NEARER_OF_ALL):
        return None
    return f"features of x of the data look like others of the run's own: {listed(moved)}"


def _orders(shape: tuple[int, ...]) -> Iterator[FeatureOrder]:
    """Yield each order of the features of an image but its own: channels, mirrored axes, and two exchanged ones."""
    small = next((axis for axis, length in enumerate(shape) if 1 < length <= CHANNELS), None)
    large = [axis for axis, length in enumerate(shape) if length > CHANNELS]
    same = tuple(range(len(shape)))
    turned = [same]
    if len(large) == 2 and shape[large[0]] == shape[large[1]]:
        turned.append(tuple({large[0]: large[1], large[1]: large[0]}.get(axis, axis) for axis in same))
    mirrors = [axes for n in range(len(large) + 1) for axes in itertools.combinations(large, n)]
    channels = [None] if small is None else [(small, each) for each in itertools.permutations(range(shape[small]))]
    for number, (axes, mirrored, order) in enumerate(itertools.product(turned, mirrors, channels)):
        if number:
            yield FeatureOrder(axes, mirrored, order)


def _assigned(mine: ClassMeans, its: ClassMeans) -> tuple[list[tuple[int, int]], float]:
    """Return the features that look like others in the order that fits best, each with that other one, and its d."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    costs = sum(
        (a[np.newaxis] - b[:, np.newaxis]) ** 2 / (e[np.newaxis] + f[:, np.newaxis])
        for a, b, e, f in zip(mine.means, its.means, mine.errors, its.errors, strict=True)
    )
    at, like = linear_sum_assignment(costs)
    # A feature stays where it is unless another one is nearer for sure.
    moved = [(int(a), int(b)) for a, b in zip(at, like, strict=True) if costs[a, b] < costs[a, a] / NEARER_OF_ALL]
    return moved, float(costs[at, like].mean() / len(mine.means))
