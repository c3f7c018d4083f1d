"""Defines the partition into unequal sizes without label skew."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.data.partitions.cut import apportion, cut
from raysim.seeds import generator, key, permutation


class Quantity(Section):
    """Client k gets a random part of the examples, of a size in proportion to exp(sigma z_k), z_k ~ N(0, 1).

    Every client gets one example first; the others are dealt in proportion, by largest remainder. After the "quantity
    skew" of Li et al. 2022 (Federated Learning on Non-IID Data Silos); a departure: the shares are log-normal, theirs
    are a draw of a Dirichlet distribution.
    """

    name: Literal["quantity"] = "quantity"
    sigma: float = Key(1.0, ge=0, le=1_000, description="Standard deviation of the sizes' logarithm; 0: equal sizes.")


def quantity(labels: Int64s, num_clients: int, seed: int, sigma: float) -> list[Int64s]:
    """Divide examples; see `Quantity`. Only the number of labels matters.

    >>> [len(part) for part in quantity(np.zeros(6), 3, seed=0, sigma=0.0)]
    [2, 2, 2]
    """
    normal = generator(key(seed, "partition/quantity/sizes")).standard_normal(num_clients)
    # Shifted by the largest, so that no exponential overflows at any sigma.
    weights = np.exp(sigma * (normal - normal.max()))
    ties = np.arange(num_clients, dtype=np.int64)
    sizes = 1 + apportion(len(labels) - num_clients, weights, ties)
    order = permutation(key(seed, "partition/quantity/examples"), len(labels))
    return [np.sort(part) for part in cut(order, sizes)]
