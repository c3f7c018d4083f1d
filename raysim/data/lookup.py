"""What every split says of a client that it does not have."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping

from raysim.errors import DataError

# Comparing an id with a million others takes minutes; the first few thousand show what ids look like.
_COMPARED = 5_000


def check_position(position: int, num_clients: int) -> None:
    """Raise IndexError unless 0 <= position < num_clients (no counting from the end: a position is an identity)."""
    if not 0 <= position < num_clients:
        raise IndexError(f"a client's position must be in 0..{num_clients - 1}, but got {position}")


def unknown_client(client_id: str, ids: Iterable[str], num_clients: int) -> DataError:
    """The error for an id that is not in a split; `ids` may be endless, only its beginning is compared."""
    nearest = difflib.get_close_matches(client_id, itertools.islice(ids, _COMPARED), n=1, cutoff=0.0)
    hint = f"; the nearest is {nearest[0]!r}" if nearest else ""
    return DataError(f"no client {client_id!r} among the {num_clients} of this split{hint}")


def position_in(positions: Mapping[str, int], client_id: str) -> int:
    """The position of an id, or DataError with the nearest one that exists."""
    position = positions.get(client_id)
    if position is None:
        raise unknown_client(client_id, positions, len(positions))
    return position
