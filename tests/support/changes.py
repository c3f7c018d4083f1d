"""Writes strange tables as the texts of `--set` and `--sweep`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from raysim.config.plain import shown
from tests.support.mutated import Choose
from tests.support.strange_values import TEXTS

DEEPEST = 8
"""Levels of a table that are written with dots."""

RAW = (
    "",
    "=",
    "[",
    "[" * 5_000,
    "{a=" * 3_000,
    "9" * 5_000,
    "1e999",
    "nan",
    "inf",
    "0x",
    "2024-02-30",
    "2024-02-29",
    "'''",
    '"\\ud800"',
    "1,2",
    ",",
    "a,,b",
    "1,1",
    "true,false",
    *TEXTS,
)
"""Values as people mistype them, and as no parser likes them."""


def texts(table: Mapping[str, Any], choose: Choose) -> list[str]:
    """Return a table's entries as "key.key=value", one of them with a value of `RAW`."""
    leaves = list(_leaves(table, ""))
    if not leaves:
        return [choose(RAW)]
    spoilt = choose(range(len(leaves)))
    return [f"{key}={choose(RAW) if place == spoilt else value}" for place, (key, value) in enumerate(leaves)]


def _leaves(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value and path.count(".") < DEEPEST:
            yield from _leaves(value, f"{path}{key}.")
        elif value is not None:
            yield f"{path}{key}", _written(value)


def _written(value: Any) -> str:
    try:
        # But for tables, JSON is TOML.
        return shown(value) if isinstance(value, Mapping) else json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        return shown(value)
