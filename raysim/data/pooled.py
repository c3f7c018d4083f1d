"""Pools all training clients into one, for centralised training."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data.dataset import FederatedDataset
from raysim.data.fingerprint import address_digest
from raysim.data.split import Arrays, Split, check_position, position_in, text_of

CLIENT = "pooled"


@dataclasses.dataclass(frozen=True)
class PooledSplit:
    """One client with the examples of all clients of `split`, in order of position."""

    split: Split

    __repr__ = text_of

    def __len__(self) -> int:
        return 1

    def sizes(self, positions: Int64s | None = None) -> Int64s:
        """Return the number of examples, int64, once for each position."""
        whole = np.array([self.split.sizes().sum()], np.int64)
        return whole if positions is None else whole[positions]

    def client(self, position: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Copy all examples into memory."""
        check_position(position, 1)
        pairs = [self.split.client(k) for k in range(len(self.split))]
        x, y = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        x.flags.writeable = y.flags.writeable = False
        return x, y

    def arrays(self) -> Arrays | None:
        """Return the split's arrays if its clients' rows are consecutive in order of position, else None."""
        whole = self.split.arrays()
        if whole is None or (np.diff(whole.first_rows) != self.split.sizes()[:-1]).any():
            return None
        return whole._replace(first_rows=whole.first_rows[:1])

    def id_of(self, position: int) -> str:
        """Return the client's id."""
        check_position(position, 1)
        return CLIENT

    def position_of(self, client_id: str) -> int:
        """Return 0; DataError for another id."""
        return position_in({CLIENT: 0}, client_id)


def pool_clients(dataset: FederatedDataset) -> FederatedDataset:
    """Return the dataset with its training clients as one; the other splits stay. Nothing is read yet.

    Training on it holds all training examples in memory.
    """
    return dataclasses.replace(
        dataset,
        train=PooledSplit(dataset.train),
        fingerprint=address_digest({"pooled": dataset.fingerprint}),
    )
