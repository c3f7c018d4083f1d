"""Between a partition and its shuffled twin."""

from __future__ import annotations

import numpy as np

from raysim.data.partitions.cut import cut
from raysim.seeds import Int64s, key, permutation


def mix(parts: list[Int64s], share: float, seed: int) -> list[Int64s]:
    """Every client gives up a share of its examples, chosen at random, for as many from all that was given up.

    Sizes never change. Share 0 is the partition itself, share 1 has the law of `shuffled` with its sizes. Source: Wang
    et al. 2021, section 4.3.3.

    Args:
        parts: the partition.
        share: in [0, 1]; of n examples, floor(share * n + 1/2) are given up.
        seed: the data's seed.
    """
    if share == 0:
        return parts
    kept, given = [], []
    for client, part in enumerate(parts):
        order = part[permutation(key(seed, "partition/mix/client", client), len(part))]
        num_given = int(share * len(part) + 0.5)
        given.append(order[:num_given])
        kept.append(order[num_given:])
    pool = np.concatenate(given)
    pool = pool[permutation(key(seed, "partition/mix/pool"), len(pool))]
    received = cut(pool, np.array([len(part) for part in given], np.int64))
    return [np.sort(np.concatenate(pair)) for pair in zip(kept, received, strict=True)]
