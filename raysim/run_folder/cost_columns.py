"""Tells which columns of rounds are costs of execution."""

from __future__ import annotations

from raysim.config.columns import COSTS, SECONDS, TRAFFIC


def tells_cost(column: str) -> bool:
    """Whether the column is a cost of the round's execution; every other column has the same bits on any executor."""
    return column in COSTS or column.startswith((SECONDS, TRAFFIC))
