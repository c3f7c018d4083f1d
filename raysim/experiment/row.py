"""Defines the record of a round: the value of each metric by its name, which is a column of `rounds.parquet`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Row = Mapping[str, Any]


def lost_every_update(row: Row) -> bool:
    """Return whether every update of the round was rejected, because none was finite.

    A round in which a rule had too few updates left has no client in its sums either, but the loss of those that were
    finite.

    >>> lost_every_update({"clients": 0, "rejected": 4, "loss": None})
    True
    >>> lost_every_update({"clients": 0, "rejected": 1, "loss": 2.3})
    False
    """
    return bool(row.get("rejected")) and not row.get("clients") and row.get("loss") is None
