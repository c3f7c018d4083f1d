"""Defines label skew by a Dirichlet distribution, with labels drawn at random."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import Positive
from raysim.data.partitions.cut import even_sizes
from raysim.data.partitions.prior import ClassPiles, Prior, concentration, renormalise
from raysim.seeds import generator, key


class Dirichlet(Section):
    """Client k draws q_k ~ Dir(alpha, ..., alpha), then the labels of its examples from q_k, without replacement.

    One client after the other; a class without examples left is taken out of q_k, which is renormalised. Sizes differ
    by at most one. Source: Wang et al. 2021 (A Field Guide to Federated Optimization), A.3, after Hsu et al. 2019.
    """

    name: Literal["dirichlet"] = "dirichlet"
    alpha: Positive = Key(description="From near 0 (one label per client) to infinity (every client as the prior).")
    prior: Prior = "uniform"


def dirichlet(labels: Int64s, num_clients: int, seed: int, alpha: float, prior: Prior = "uniform") -> list[Int64s]:
    """Divide examples; see `Dirichlet`.

    >>> [len(part) for part in dirichlet(np.array([0, 0, 1, 1, 2]), 2, seed=0, alpha=0.1)]
    [3, 2]
    >>> labels = np.array([0, 1, 0, 1, 0, 1])
    >>> [labels[part].tolist() for part in dirichlet(labels, 2, seed=0, alpha=0.001)]  # one label each
    [[1, 1, 1], [0, 0, 0]]
    """
    piles = ClassPiles(labels, seed, "partition/dirichlet/pile")
    parameter = concentration(piles.counts, alpha, prior)
    parts = []
    for client, size in enumerate(even_sizes(len(labels), num_clients).tolist()):
        draws = generator(key(seed, "partition/dirichlet/client", client))
        weights = draws.dirichlet(parameter)
        counts = np.zeros(len(parameter), np.int64)
        # Two methods have the same law: to draw one by one and renormalise when a class runs out, and to draw all at
        # once, drop the draws beyond a class's examples, and draw these again from the classes that remain.
        while (missing := size - int(counts.sum())) > 0:
            weights = renormalise(weights, piles.remaining - counts, parameter, draws)
            counts = np.minimum(counts + draws.multinomial(missing, weights), piles.remaining)
        parts.append(piles.take(counts))
    return parts
