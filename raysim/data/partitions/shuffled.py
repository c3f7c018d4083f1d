"""Defines the partition with the sizes of another, without its skew or with a part of it."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.data.partitions.cut import cut
from raysim.data.partitions.dirichlet import Dirichlet
from raysim.data.partitions.dirichlet_reassign import DirichletReassign
from raysim.data.partitions.iid import Iid
from raysim.data.partitions.natural import Natural
from raysim.data.partitions.pachinko import Pachinko
from raysim.data.partitions.quantity import Quantity
from raysim.data.partitions.shards import Shards
from raysim.seeds import key, permutation

Unshuffled = Iid | Shards | Dirichlet | DirichletReassign | Pachinko | Quantity | Natural


class Shuffled(Section):
    """Client k gets as many examples as in another partition, drawn at random without replacement from all.

    Source: Wang et al. 2021, section 4.3.3.
    """

    name: Literal["shuffled"] = "shuffled"
    sizes_of: Annotated[Unshuffled, Key(discriminator="name")] = Key(description="The partition whose sizes are taken.")


def shuffled(parts: list[Int64s], seed: int) -> list[Int64s]:
    """Divide examples; see `Shuffled`. `parts` is the partition `sizes_of`.

    >>> [len(part) for part in shuffled([np.arange(3), np.arange(3, 4)], seed=0)]
    [3, 1]
    """
    sizes = np.array([len(part) for part in parts], np.int64)
    order = permutation(key(seed, "partition/shuffled"), int(sizes.sum()))
    return [np.sort(part) for part in cut(order, sizes)]


def mix(parts: list[Int64s], share: float, seed: int) -> list[Int64s]:
    """Pool a random share of every client's examples, and deal each client as many from the pool.

    Sizes never change. Share 0 is the partition itself, share 1 has the law of `shuffled` with its sizes. Source: Wang
    et al. 2021, section 4.3.3.

    >>> parts = [np.array([0, 1]), np.array([2, 3, 4])]
    >>> [part.tolist() for part in mix(parts, 0.0, seed=0)], [len(part) for part in mix(parts, 1.0, seed=0)]
    ([[0, 1], [2, 3, 4]], [2, 3])

    Args:
        parts: the partition.
        share: in [0, 1]; a client with n examples gives floor(share * n + 1/2) to the pool.
        seed: the data's seed.
    """
    if share == 0:
        return parts
    kept, pooled = [], []
    for client, part in enumerate(parts):
        order = part[permutation(key(seed, "partition/mix/client", client), len(part))]
        num_pooled = int(share * len(part) + 0.5)
        pooled.append(order[:num_pooled])
        kept.append(order[num_pooled:])
    pool = np.concatenate(pooled)
    pool = pool[permutation(key(seed, "partition/mix/pool"), len(pool))]
    received = cut(pool, np.array([len(part) for part in pooled], np.int64))
    return [np.sort(np.concatenate(pair)) for pair in zip(kept, received, strict=True)]
