"""Tables within tables by dotted keys: {"client": {"epochs": 3}} has "client.epochs"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def leaves(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that is no table, in order, with its key; None counts as absent. `path` goes before every key."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}.")
        elif value is not None:
            yield f"{path}{key}", value
