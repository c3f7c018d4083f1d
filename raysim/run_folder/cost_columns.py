"""Tells which columns of rounds are costs of execution."""

from __future__ import annotations

from raysim.run_folder.timeline import PREFIX

_COSTS = frozenset({"workers", "wall_time_s", "idle_fraction", "retries"})

TRAFFIC = "ray_bytes_"
"""Prefix of columns that count bytes through the object store."""


def tells_cost(column: str) -> bool:
    """Whether the column is a cost of the round's execution; every other column has the same bits on any executor."""
    return column in _COSTS or column.startswith((PREFIX, TRAFFIC))
