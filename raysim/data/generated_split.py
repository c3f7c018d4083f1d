"""Defines the generated split: it computes a client on access, so a million clients cost nothing until sampled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data.split import Arrays, check_position, text_of, unknown_client
from raysim.errors import DataError


class ClientSource(Protocol):
    """Computes any client from its number alone; small, immutable and picklable."""

    def sizes(self, clients: Int64s) -> Int64s:
        """Return the number of examples of each numbered client."""
        ...

    def client(self, client: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the client's (x, y)."""
        ...


@dataclass(frozen=True, eq=False)
class GeneratedSplit:
    """A split of numbered clients; the id of client 17 is "17" at any position.

    Attributes:
        source: computes a client.
        num_clients: of this split.
        members: returns the sorted numbers of the split's clients, int64, (num_clients,). It is called when first
            needed, and pickled instead of its result. None: clients 0 to num_clients - 1.
    """

    source: ClientSource
    num_clients: int
    members: Callable[[], Int64s] | None = None

    __repr__ = text_of

    def __len__(self) -> int:
        return self.num_clients

    def sizes(self, positions: Int64s | None = None) -> Int64s:
        """Return the number of examples per client, int64."""
        if positions is None:
            positions = np.arange(self.num_clients, dtype=np.int64)
        elif positions.size and not 0 <= positions.min() <= positions.max() < self.num_clients:
            raise IndexError(f"positions must be in 0..{self.num_clients - 1}, but go to {positions.max()}")
        return self.source.sizes(positions if self._members is None else self._members[positions])

    def client(self, position: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Compute the client's rows; read-only, as in every split."""
        x, y = self.source.client(self._number(position))
        x.flags.writeable = y.flags.writeable = False
        return x, y

    def arrays(self) -> Arrays | None:
        """Return None: no rows are stored."""
        return None

    def id_of(self, position: int) -> str:
        """Return the client's number, as text."""
        return str(self._number(position))

    def position_of(self, client_id: str) -> int:
        """Return the client's position; DataError with the nearest id if there is none."""
        if not (client_id.isascii() and client_id.isdigit() and str(int(client_id)) == client_id):
            raise unknown_client(client_id, map(self.id_of, range(self.num_clients)), self.num_clients)
        number = int(client_id)
        members = self._members
        position = number if members is None else int(np.searchsorted(members, min(number, int(members[-1]))))
        nearest = min(position, self.num_clients - 1)
        if self._number(nearest) != number:
            raise DataError(
                f"no client {client_id!r} among the {self.num_clients} of this split; "
                f"the nearest is {self.id_of(nearest)!r}"
            )
        return position

    def _number(self, position: int) -> int:
        check_position(position, self.num_clients)
        return position if self._members is None else int(self._members[position])

    @cached_property
    def _members(self) -> Int64s | None:
        return None if self.members is None else self.members()

    def __reduce__(self) -> tuple[Any, ...]:
        return GeneratedSplit, (self.source, self.num_clients, self.members)
