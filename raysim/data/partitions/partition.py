"""Chooses and applies a partition."""

from __future__ import annotations

from typing import Annotated, Any, assert_never

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.data.partitions.dirichlet import Dirichlet, dirichlet
from raysim.data.partitions.dirichlet_reassign import DirichletReassign, dirichlet_reassign
from raysim.data.partitions.iid import Iid, iid
from raysim.data.partitions.natural import Natural, natural
from raysim.data.partitions.pachinko import Pachinko, pachinko
from raysim.data.partitions.quantity import Quantity, quantity
from raysim.data.partitions.shards import Shards, shards
from raysim.data.partitions.shuffled import Shuffled, Unshuffled, shuffled
from raysim.errors import ExperimentError

Partition = Annotated[Unshuffled | Shuffled, Key(discriminator="name")]

LABEL_FREE = (Iid, Quantity, Natural)
"""Partitions that do not use labels."""


def classes(partition: Unshuffled | Shuffled, y: npt.NDArray[Any], lacks: str | None) -> Int64s:
    """Return each example's label; all equal if examples have no label, or many, as `lacks` says.

    Raises:
        ExperimentError: the partition divides by label.
    """
    if lacks is None:
        return y.astype(np.int64, copy=False)
    chosen = partition.sizes_of if isinstance(partition, Shuffled) else partition
    if not isinstance(chosen, LABEL_FREE):
        raise ExperimentError(
            f"data.partition {chosen.name!r} divides by label, but {lacks}: "
            f"choose {', '.join(kind.model_fields['name'].default for kind in LABEL_FREE)} or shuffled"
        )
    return np.zeros(len(y), np.int64)


def divide(
    partition: Unshuffled | Shuffled,
    labels: Int64s,
    num_clients: int,
    seed: int,
    client_keys: npt.NDArray[Any] | None = None,
    coarse_of: Int64s | None = None,
) -> list[Int64s]:
    """Give every example to exactly one client, and every client at least one.

    Args:
        partition: the section of the partition.
        labels: int64, (examples,).
        num_clients: at most as many as examples; not used by a natural partition.
        seed: the data's seed.
        client_keys: the source's natural clients, (examples,), if it has any.
        coarse_of: the coarse label of every label, (classes,), if the source has two levels.

    Returns:
        The sorted indices of each client's examples, int64.

    Raises:
        ExperimentError: too many clients, or a natural partition of a source that has no clients.
    """
    sizes_of = partition.sizes_of if isinstance(partition, Shuffled) else partition
    if not isinstance(sizes_of, Natural) and not 1 <= num_clients <= len(labels):
        raise ExperimentError(f"data.clients must be in 1..{len(labels)}, the number of examples, but is {num_clients}")
    match partition:
        case Iid():
            return iid(labels, num_clients, seed)
        case Shards():
            return shards(labels, num_clients, seed, partition.shards)
        case Dirichlet():
            return dirichlet(labels, num_clients, seed, partition.alpha, partition.prior)
        case DirichletReassign():
            return dirichlet_reassign(labels, num_clients, seed, partition.alpha, partition.prior, partition.fill)
        case Pachinko():
            return pachinko(labels, num_clients, seed, partition.alpha, partition.beta, coarse_of)
        case Quantity():
            return quantity(labels, num_clients, seed, partition.sigma)
        case Natural():
            if client_keys is None:
                raise ExperimentError("data.partition 'natural' needs a source with natural clients; this has none")
            return natural(client_keys)
        case Shuffled():
            return shuffled(divide(partition.sizes_of, labels, num_clients, seed, client_keys, coarse_of), seed)
        case _:
            assert_never(partition)
