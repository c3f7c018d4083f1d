"""Defines label skew by a Dirichlet distribution, in exact proportions and equal sizes."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import Positive
from raysim.data.partitions.cut import apportion, even_sizes
from raysim.data.partitions.prior import ClassPiles, Prior, concentration, renormalise
from raysim.seeds import generator, key

Fill = Annotated[
    Literal["shares", "remaining"],
    Key(
        description=(
            'What fills the place of a class that ran out. "shares": the other classes, in proportion to q_k; '
            '"remaining": all classes, in proportion to the examples left in them.'
        )
    ),
]


class DirichletReassign(Section):
    """Client k draws q_k ~ Dir(alpha * p) and takes its share of each class: n_k * q_k examples, by largest remainder.

    One client after the other. When a class runs out, other classes fill its place, by `fill`. With a small alpha,
    "shares" takes nearly always one other class, and "remaining" takes some of every class that is left.

    Sizes differ by at most one. Source: Yang et al. 2023 (When to Trust Aggregated Gradients), appendix G, which refers
    to FedNLP (Lin et al. 2021). FedNLP's code fills as "remaining" does, apart from two things: it rounds up, and it
    fills the place of one class before it takes the next one.
    """

    name: Literal["dirichlet_reassign"] = "dirichlet_reassign"
    alpha: Positive = Key(description="From near 0 (one label per client) to infinity (every client as the prior).")
    prior: Prior = "empirical"
    fill: Fill = "shares"


def dirichlet_reassign(
    labels: Int64s,
    num_clients: int,
    seed: int,
    alpha: float,
    prior: Prior = "empirical",
    fill: Fill = "shares",
) -> list[Int64s]:
    """Divide examples; see `DirichletReassign`.

    >>> parts = dirichlet_reassign(np.array([0, 0, 1, 1]), 2, seed=0, alpha=1e9)
    >>> [sorted(part // 2) == [0, 1] for part in parts]
    [True, True]
    """
    piles = ClassPiles(labels, seed, "partition/dirichlet_reassign/pile")
    parameter = concentration(piles.counts, alpha, prior)
    tie_order = np.arange(len(parameter), dtype=np.int64)
    parts = []
    for client, size in enumerate(even_sizes(len(labels), num_clients).tolist()):
        draws = generator(key(seed, "partition/dirichlet_reassign/client", client))
        weights = draws.dirichlet(parameter)
        counts = np.zeros(len(parameter), np.int64)
        if fill == "remaining":
            counts = np.minimum(apportion(size, weights, tie_order), piles.remaining)
        while (missing := size - int(counts.sum())) > 0:
            left = piles.remaining - counts
            weights = left.astype(np.float64) if fill == "remaining" else renormalise(weights, left, parameter, draws)
            counts = np.minimum(counts + apportion(missing, weights, tie_order), piles.remaining)
        parts.append(piles.take(counts))
    return parts
