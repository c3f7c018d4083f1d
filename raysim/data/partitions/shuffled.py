"""The sizes of another partition, without its skew."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field as Key

from raysim.data.partitions.cut import cut
from raysim.data.partitions.dirichlet import Dirichlet
from raysim.data.partitions.dirichlet_reassign import DirichletReassign
from raysim.data.partitions.iid import Iid
from raysim.data.partitions.natural import Natural
from raysim.data.partitions.pachinko import Pachinko
from raysim.data.partitions.quantity import Quantity
from raysim.data.partitions.shards import Shards
from raysim.section import Section
from raysim.seeds import Int64s, key, permutation

Unshuffled = Iid | Shards | Dirichlet | DirichletReassign | Pachinko | Quantity | Natural


class Shuffled(Section):
    """Client k gets as many examples as in another partition, drawn at random from all without replacement.

    sizes_of: that partition.

    Source: Wang et al. 2021, section 4.3.3.
    """

    name: Literal["shuffled"] = "shuffled"
    sizes_of: Annotated[Unshuffled, Key(discriminator="name")]


def shuffled(parts: list[Int64s], seed: int) -> list[Int64s]:
    """See `Shuffled`; `parts` is the partition `sizes_of`."""
    sizes = np.array([len(part) for part in parts], np.int64)
    order = permutation(key(seed, "partition/shuffled"), int(sizes.sum()))
    return [np.sort(part) for part in cut(order, sizes)]
