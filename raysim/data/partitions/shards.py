"""Defines the partition into shards of label-sorted examples: few labels per client."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.data.partitions.cut import cut, even_sizes
from raysim.errors import ExperimentError
from raysim.seeds import key, permutation


class Shards(Section):
    """Sort the examples by label, cut them into shards of equal size, and deal each client the same number at random.

    Source: McMahan et al. 2017, section 3 (200 shards of 300 examples for 100 clients). If the numbers do not divide
    (the paper does not treat this), shards differ by at most one example and clients by at most one shard, so no
    example is lost.
    """

    name: Literal["shards"] = "shards"
    shards: int | None = Key(None, ge=1, le=10**9, description="Number of shards in all. Absent: two per client.")


def shards(labels: Int64s, num_clients: int, seed: int, num_shards: int | None = None) -> list[Int64s]:
    """Divide examples; see `Shards`.

    >>> labels = np.array([1, 0, 1, 0])
    >>> sorted(part.tolist() for part in shards(labels, 2, seed=0, num_shards=2))
    [[0, 2], [1, 3]]

    Raises:
        ExperimentError: fewer shards than clients, or more than examples.
    """
    num_shards = min(2 * num_clients, len(labels)) if num_shards is None else num_shards
    if not num_clients <= num_shards <= len(labels):
        raise ExperimentError(
            f"clients <= shards <= examples must hold, but got {num_clients} clients, {num_shards} shards "
            f"and {len(labels)} examples"
        )
    pieces = cut(np.argsort(labels, kind="stable"), even_sizes(len(labels), num_shards))
    dealt = permutation(key(seed, "partition/shards"), num_shards)
    return [
        np.sort(np.concatenate([pieces[shard] for shard in hand])).astype(np.int64, copy=False)
        for hand in cut(dealt, even_sizes(num_shards, num_clients))
    ]
