"""Defines the split in memory: one x and one y for all clients, and the first row of each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.data.shared_rows import MappedRows, from_pickle, to_pickle
from raysim.data.split import Arrays, check_position, position_in, text_of


@dataclass(frozen=True, eq=False)
class ArraySplit:
    """A split whose rows lie in two arrays, sorted by client.

    It pickles as these plain arrays, which Ray shares between the processes of a machine without copying, or as where
    they are (`shared_rows.py`).

    Attributes:
        ids: a client's id at its position; distinct.
        x: features, (rows, ...).
        y: targets, (rows, ...).
        first_rows: int64, (clients + 1,): client k has rows first_rows[k] to first_rows[k + 1].
        checksums: of x and y, if they are shared with a script; see `lent_rows`. A pickled copy shares nothing.
    """

    ids: tuple[str, ...]
    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    first_rows: Int64s
    checksums: tuple[int | None, int | None] = (None, None)

    __repr__ = text_of

    def __len__(self) -> int:
        return len(self.ids)

    def sizes(self, positions: Int64s | None = None) -> Int64s:
        """Return the number of examples per client, int64."""
        if positions is None:
            return np.diff(self.first_rows)
        return self.first_rows[positions + 1] - self.first_rows[positions]

    def client(self, position: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return read-only views of the client's rows."""
        check_position(position, len(self.ids))
        rows = slice(int(self.first_rows[position]), int(self.first_rows[position + 1]))
        x, y = self.x[rows], self.y[rows]
        x.flags.writeable = y.flags.writeable = False
        return x, y

    def arrays(self) -> Arrays:
        """Return the split's arrays."""
        return Arrays(self.x, self.y, self.first_rows[:-1])

    def id_of(self, position: int) -> str:
        """Return the client's id."""
        check_position(position, len(self.ids))
        return self.ids[position]

    def position_of(self, client_id: str) -> int:
        """Return the client's position; DataError with the nearest id if there is none."""
        return position_in(self._positions, client_id)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {client_id: position for position, client_id in enumerate(self.ids)}

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.ids, to_pickle(self.x), to_pickle(self.y), self.first_rows)


def _unpickled(
    ids: tuple[str, ...],
    x: npt.NDArray[Any] | MappedRows,
    y: npt.NDArray[Any] | MappedRows,
    first_rows: Int64s,
) -> ArraySplit:
    return ArraySplit(ids, from_pickle(x), from_pickle(y), first_rows)
