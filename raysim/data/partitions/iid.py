"""Defines the partition into equal random parts."""

from __future__ import annotations

from typing import Literal

import numpy as np

from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.data.partitions.cut import cut, even_sizes
from raysim.seeds import key, permutation


class Iid(Section):
    """One permutation of the examples, cut into parts whose sizes differ by at most one."""

    name: Literal["iid"] = "iid"


def iid(labels: Int64s, num_clients: int, seed: int) -> list[Int64s]:
    """Divide examples; see `Iid`. Only the number of labels matters.

    >>> sorted(len(part) for part in iid(np.zeros(7), 3, seed=0))
    [2, 2, 3]
    """
    order = permutation(key(seed, "partition/iid"), len(labels))
    return [np.sort(part) for part in cut(order, even_sizes(len(labels), num_clients))]
