"""Holds out training clients, or a part of each client's examples, as the validation split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import Field as Key

from raysim.arrays import Int64s
from raysim.errors import ExperimentError
from raysim.seeds import key, permutation

MOST_LISTED = 100_000_000
"""Clients that a process lists at most: eight bytes for each are 0.8 GB."""

Share = Annotated[float, Key(ge=0, lt=1)]
ExamplesShare = Annotated[
    Share, Key(description="Share of each client's training examples that become its validation examples.")
]
ClientsShare = Annotated[
    Share, Key(description="Share of the training clients set aside, with their examples, as the validation split.")
]


@dataclass(frozen=True)
class Holdout:
    """A random choice of floor(share * clients + 1/2) training clients as validation clients."""

    num_clients: int
    share: float
    seed: int

    @property
    def num_validation(self) -> int:
        """Number of clients held out."""
        return _rounded(self.share, self.num_clients)

    @property
    def num_train(self) -> int:
        """Number of clients that remain."""
        return self.num_clients - self.num_validation

    def validation(self) -> Int64s:
        """Return the sorted numbers of the clients held out."""
        return np.sort(self._order()[: self.num_validation])

    def train(self) -> Int64s:
        """Return the sorted numbers of the clients that remain."""
        return np.sort(self._order()[self.num_validation :])

    def _order(self) -> Int64s:
        return permutation(key(self.seed, "holdout/clients"), self.num_clients)


def check_holdout(num_clients: int, clients: float, examples: float) -> None:
    """Raise ExperimentError unless at most one kind is set, and clients are left on both sides."""
    if clients and examples:
        raise ExperimentError(
            f"holdout (clients) and holdout_examples cannot both be set, but are {clients} and {examples}: "
            "there is one validation split"
        )
    if clients and num_clients > MOST_LISTED:
        raise ExperimentError(
            f"data.holdout lists every client, and at most {MOST_LISTED:,} can be listed, but data.clients = "
            f"{num_clients:,}: lower it, or take data.holdout_examples"
        )
    if clients and not 0 < _rounded(clients, num_clients) < num_clients:
        raise ExperimentError(
            f"holdout must leave at least one training and one validation client, "
            f"but {clients} of {num_clients} clients is {_rounded(clients, num_clients)}"
        )


def num_held_out(share: float, sizes: Int64s) -> Int64s:
    """Return the number of validation examples of each client; at least one example stays for training.

    >>> num_held_out(0.5, np.array([1, 4])).tolist()
    [0, 2]
    """
    return np.minimum((share * sizes + 0.5).astype(np.int64), sizes - 1)


def hold_out_examples(part: Int64s, share: float, client: int, seed: int) -> tuple[Int64s, Int64s]:
    """Return one client's sorted (train, validation) examples, chosen at random; see `num_held_out`."""
    order = part[permutation(key(seed, "holdout/examples", client), len(part))]
    num_validation = int(num_held_out(share, np.array(len(part), np.int64)))
    return np.sort(order[num_validation:]), np.sort(order[:num_validation])


def _rounded(share: float, total: int) -> int:
    return int(share * total + 0.5)
