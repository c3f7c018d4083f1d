"""Defines the Dirichlet parameter over classes, and the piles of examples per class."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.seeds import key, permutation

Prior = Annotated[
    Literal["uniform", "empirical"],
    Key(
        description=(
            '"uniform": Dir(alpha, ..., alpha) over the classes that occur; "empirical": Dir(alpha * p), p being the '
            "label distribution of the whole set."
        )
    ),
]


def renormalise(
    weights: npt.NDArray[np.float64],
    left: Int64s,
    parameter: npt.NDArray[np.float64],
    draws: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """Return a client's weights over the classes that have examples left, 0 elsewhere, summing to 1.

    A draw of Dir(parameter), renormalised after some classes are removed, is a draw of the Dirichlet distribution over
    the other classes, independent of the removed ones. With a small alpha all weight may fall on classes that ran
    out. Then the other classes are drawn again: the law is the same, and zero is not divided by zero.

    Args:
        weights: the client's draw, (classes,).
        left: examples left in each class, at least one in all.
        parameter: of the Dirichlet distribution.
        draws: the client's generator.
    """
    kept: npt.NDArray[np.float64] = np.where(left > 0, weights, 0.0)
    if kept.sum() < np.finfo(np.float64).tiny:
        kept[left > 0] = draws.dirichlet(parameter[left > 0])
    kept /= kept.sum()
    return kept


def concentration(counts: Int64s, alpha: float, prior: Prior) -> npt.NDArray[np.float64]:
    """Return the parameter of the clients' Dirichlet distribution, (classes,).

    "uniform": (alpha, ..., alpha). "empirical": alpha * p, p being the label distribution of the whole set.

    >>> [concentration(np.array([3, 1]), 2.0, prior).tolist() for prior in ("uniform", "empirical")]
    [[2.0, 2.0], [1.5, 0.5]]
    """
    if prior == "uniform":
        return np.full(len(counts), alpha)
    proportional: npt.NDArray[np.float64] = alpha * counts / counts.sum()
    return proportional


class ClassPiles:
    """The examples of each class that occurs, in random order, taken without replacement.

    >>> piles = ClassPiles(np.array([5, 7, 5]), seed=0, purpose="example")
    >>> piles.take(np.array([2, 0])).tolist(), piles.remaining.tolist()
    ([0, 2], [0, 1])
    """

    def __init__(self, labels: Int64s, seed: int, purpose: str) -> None:
        """Shuffle each class by a separate address, so that a pile does not depend on other classes."""
        _, classes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        self.counts: Int64s = counts.astype(np.int64)
        by_class = np.split(np.argsort(classes, kind="stable"), np.cumsum(self.counts)[:-1])
        self._piles = [pile[permutation(key(seed, purpose, c), len(pile))] for c, pile in enumerate(by_class)]
        self.remaining = self.counts.copy()

    def take(self, counts: Int64s) -> Int64s:
        """Remove `wanted[c]` examples of each class c, at most all that remain; return sorted indices."""
        taken = []
        for c in np.flatnonzero(counts):
            start = int(self.counts[c] - self.remaining[c])
            taken.append(self._piles[c][start : start + int(counts[c])])
        self.remaining -= counts
        return np.sort(np.concatenate(taken)).astype(np.int64, copy=False)
