"""Defines a subset of a split's clients as a split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data.split import Arrays, Split, check_position, text_of, unknown_client
from raysim.errors import DataError


@dataclass(frozen=True, eq=False)
class Subset:
    """A view: clients keep their ids and rows, and get new positions.

    Attributes:
        whole: the clients' original split.
        members: the clients' positions in `whole`, rising, int64, (clients,).
    """

    whole: Split
    members: Int64s

    __repr__ = text_of

    def __len__(self) -> int:
        return len(self.members)

    def sizes(self, positions: Int64s | None = None) -> Int64s:
        """Return the number of examples per client, int64."""
        return self.whole.sizes(self.members if positions is None else self.members[positions])

    def client(self, position: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the client's rows, as in the whole split."""
        check_position(position, len(self))
        return self.whole.client(int(self.members[position]))

    def arrays(self) -> Arrays | None:
        """Return the whole split's arrays with the members' first rows."""
        whole = self.whole.arrays()
        return None if whole is None else whole._replace(first_rows=whole.first_rows[self.members])

    def id_of(self, position: int) -> str:
        """Return the client's id."""
        check_position(position, len(self))
        return self.whole.id_of(int(self.members[position]))

    def position_of(self, client_id: str) -> int:
        """Return the client's position, or DataError with the nearest id."""
        try:
            member = self.whole.position_of(client_id)
        except DataError:
            member = -1
        position = int(np.searchsorted(self.members, member))
        if position == len(self) or self.members[position] != member:
            raise unknown_client(client_id, (self.id_of(p) for p in range(len(self))), len(self))
        return position
