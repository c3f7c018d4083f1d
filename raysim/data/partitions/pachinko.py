"""Defines Pachinko allocation: clients prefer some coarse labels, and some fine labels in each of them."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import Positive
from raysim.data.partitions.cut import even_sizes
from raysim.data.partitions.prior import ClassPiles
from raysim.errors import ExperimentError
from raysim.seeds import generator, key


class Pachinko(Section):
    """Every client draws a multinomial over the coarse labels, ~ Dir(alpha), and for each coarse label one over its
    fine labels, ~ Dir(beta); each example draws a coarse label, then a fine one, without replacement.

    A fine label without examples left is removed from its multinomial, which is renormalised. A coarse label is
    removed likewise when all its fine labels ran out. Sizes differ by at most one: CIFAR-100's 50,000 examples give
    500 clients 100 each. Source: Reddi et al. 2021 (Adaptive Federated Optimization), appendix F, algorithm 8; after
    Li and McCallum 2006.
    """

    name: Literal["pachinko"] = "pachinko"
    alpha: Positive = Key(0.1, description="Concentration of the distribution over coarse labels.")
    beta: Positive = Key(10.0, description="Concentration of the distributions over fine labels.")


def pachinko(
    labels: Int64s, num_clients: int, seed: int, alpha: float, beta: float, coarse_of: Int64s | None
) -> list[Int64s]:
    """Divide examples; see `Pachinko`.

    Args:
        labels: fine labels, (examples,).
        num_clients: number of clients.
        seed: the data's seed.
        alpha, beta: see `Pachinko`.
        coarse_of: the coarse label of every fine one, (classes,).

    Raises:
        ExperimentError: the source's labels have no hierarchy.

    >>> labels, coarse_of = np.array([0, 1, 2, 3, 0, 1, 2, 3]), np.array([0, 0, 1, 1])
    >>> parts = pachinko(labels, 2, seed=0, alpha=0.001, beta=10.0, coarse_of=coarse_of)  # one coarse label each
    >>> [sorted(labels[part].tolist()) for part in parts]
    [[2, 2, 3, 3], [0, 0, 1, 1]]
    >>> parts = pachinko(labels, 4, seed=0, alpha=0.001, beta=0.001, coarse_of=coarse_of)  # one fine label each
    >>> [labels[part].tolist() for part in parts]
    [[2, 2], [3, 3], [1, 1], [0, 0]]
    """
    if coarse_of is None:
        raise ExperimentError(
            "data.partition 'pachinko' needs coarse and fine labels, which only cifar100 (labels = 'fine') has here"
        )
    fine = np.unique(labels)
    piles = ClassPiles(labels, seed, "partition/pachinko/pile")
    _, parent = np.unique(coarse_of[fine], return_inverse=True)
    num_coarse = int(parent.max()) + 1
    parts = []
    for client, size in enumerate(even_sizes(len(labels), num_clients).tolist()):
        draws = generator(key(seed, "partition/pachinko/client", client))
        top = draws.dirichlet(np.full(num_coarse, alpha))
        below = [draws.dirichlet(np.full(int((parent == c).sum()), beta)) for c in range(num_coarse)]
        counts = np.zeros(len(fine), np.int64)
        while (missing := size - int(counts.sum())) > 0:
            # To draw all at once and draw the excess again has the same law as to draw one by one: see dirichlet.
            weights = _leaves(top, below, parent, piles.remaining - counts, alpha, beta, draws)
            counts = np.minimum(counts + draws.multinomial(missing, weights), piles.remaining)
        parts.append(piles.take(counts))
    return parts


def _leaves(
    top: npt.NDArray[np.float64],
    below: list[npt.NDArray[np.float64]],
    parent: Int64s,
    left: Int64s,
    alpha: float,
    beta: float,
    draws: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """Return the probability of each fine label with examples left, (fine labels,)."""
    open_coarse = np.bincount(parent, weights=left > 0, minlength=len(top)) > 0
    upper = _renormalised(top, open_coarse, alpha, draws)
    leaves = np.zeros(len(left))
    for c in np.flatnonzero(open_coarse):
        members = parent == c
        leaves[members] = upper[c] * _renormalised(below[c], left[members] > 0, beta, draws)
    leaves /= leaves.sum()
    return leaves


def _renormalised(
    weights: npt.NDArray[np.float64], there: npt.NDArray[np.bool_], parameter: float, draws: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Renormalise weights over labels with examples left; see prior.renormalise."""
    kept: npt.NDArray[np.float64] = np.where(there, weights, 0.0)
    if kept.sum() < np.finfo(np.float64).tiny:
        kept[there] = draws.dirichlet(np.full(int(there.sum()), parameter))
    kept /= kept.sum()
    return kept
