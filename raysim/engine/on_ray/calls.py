"""Calls in flight: what the driver waits for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from raysim.fold import Node


@dataclass(frozen=True)
class Start:
    """A worker was asked whether it has started."""

    worker: int


@dataclass(frozen=True)
class Work:
    """Units are carried out.

    units: what the worker does. covers: units whose sums it hands over, its earlier ones included. kept: references to
    the covered units' updates, one for each shard. sums: a reference to the sums, where they stay on the worker's node.
    copies: the worker whose units these are too, where that one is late. void: nobody wants it any more. expected_s:
    how long it should take, where that was measured.
    """

    worker: int
    ticket: int
    units: tuple[int, ...] = ()
    covers: tuple[int, ...] = ()
    kept: tuple[Any, ...] = ()
    sums: Any = None
    copies: int | None = None
    void: bool = False
    expected_s: float | None = None


@dataclass(frozen=True)
class Gather:
    """Sums that lay on a node come to the driver; `worker` adds them up first, None where there is but one record."""

    node: str
    worker: int | None
    ticket: int
    parts: tuple[Node, ...]


Call = Start | Work | Gather
