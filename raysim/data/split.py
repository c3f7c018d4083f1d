"""Defines the split: the protocol of its clients, its rows as arrays, and the errors for an unknown client."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy.typing as npt

from raysim.arrays import Int64s
from raysim.errors import DataError

# Comparing an id with a million others takes minutes; the first few thousand show what ids look like.
_COMPARED = 5_000


class Arrays(NamedTuple):
    """All rows of a split in one x and one y, read-only; some rows may belong to no client.

    Attributes:
        x: features, (rows, ...).
        y: targets, (rows, ...).
        first_rows: int64, (clients,); client k has the next `sizes()[k]` rows from first_rows[k] on.
        check: DataError if rows are no longer what they were, as those of a file that was written to.
    """

    x: npt.NDArray[Any]
    y: npt.NDArray[Any]
    first_rows: Int64s
    check: Callable[[], None] = lambda: None


class Split(Protocol):
    """Clients of one split, at positions 0 to len - 1.

    Arrays are read-only and may be views of a mapped file or of shared memory: copy before changing. An unknown
    position is an IndexError.
    """

    def __len__(self) -> int:
        """Return the number of clients."""
        ...

    def sizes(self, positions: Int64s | None = None) -> Int64s:
        """Return the number of examples of each client, int64; None: of all clients, in order of position."""
        ...

    def client(self, position: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the client's (x, y) as stored: (size, *x.shape) and (size, *y.shape).

        A module sees them converted and scaled: `raysim.data.batch`.
        """
        ...

    def arrays(self) -> Arrays | None:
        """Return all rows if they are stored in one x and one y, else None; nothing is joined."""
        ...

    def id_of(self, position: int) -> str:
        """Return the client's id."""
        ...

    def position_of(self, client_id: str) -> int:
        """Return the client's position; DataError with the nearest id if there is none."""
        ...


def text_of(split: Split) -> str:
    """Return a split's `repr`: without its ids and rows, which may be many."""
    return f"{type(split).__name__}({len(split):,} client{'s' if len(split) != 1 else ''})"


def check_position(position: int, num_clients: int) -> None:
    """Raise IndexError unless 0 <= position < num_clients (no counting from the end: a position is an identity)."""
    try:
        inside = 0 <= position < num_clients
    except TypeError:
        raise DataError(
            f"a client's position is a whole number, but got {position!r}: position_of(id) returns that of an id"
        ) from None
    if not inside:
        raise IndexError(f"a client's position must be in 0..{num_clients - 1}, but got {position}")


def unknown_client(client_id: str, ids: Iterable[str], num_clients: int) -> DataError:
    """Return the error for an id that is not in a split; only the beginning of `ids` is compared."""
    nearest = difflib.get_close_matches(client_id, itertools.islice(ids, _COMPARED), n=1, cutoff=0.0)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
    return DataError(f"no client {client_id!r} among the {num_clients} of this split{hint}")


def position_in(positions: Mapping[str, int], client_id: str) -> int:
    """Return the position of an id, or DataError with the nearest one that exists."""
    if not isinstance(client_id, str):
        raise DataError(f"a client's id is text, but got {client_id!r} ({type(client_id).__name__})")
    position = positions.get(client_id)
    if position is None:
        raise unknown_client(client_id, positions, len(positions))
    return position
