"""Calls in flight: what the driver waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from raysim.fold import Node

WorkKind = tuple[str, int]
"""A job's kind, and the phase of the round: what units of the same cost take depends on both."""


@dataclass(frozen=True)
class Start:
    """A worker was asked whether it is there."""

    worker: int


@dataclass(frozen=True)
class Work:
    """Units are carried out.

    units: what the worker does. covers: units whose sums it hands over, its earlier ones included. kept: references to
    the covered units' updates, one for each shard. sums: a reference to the sums, where they stay on the worker's node.
    copies: the worker whose units these are too, where that one is late. void: nobody wants it any more. work: what
    kind of work it is; cost: of the units, from which follows how long they should take.
    """

    worker: int
    ticket: int
    units: tuple[int, ...] = ()
    covers: tuple[int, ...] = ()
    kept: tuple[Any, ...] = ()
    sums: Any = None
    copies: int | None = None
    void: bool = False
    work: WorkKind = ("", 0)
    cost: float = 0.0

    @property
    def name(self) -> int:
        """By which the worker knows the job: another one for a copy, as it may hold units of the job that are its."""
        return self.ticket if self.copies is None else -self.ticket


@dataclass(frozen=True)
class Gather:
    """Sums that lay on a node come to the driver; `worker` adds them up first, None where there is but one record."""

    node: str
    worker: int | None
    ticket: int
    parts: tuple[Node, ...]


Call = Start | Work | Gather


class Calls:
    """The calls in flight by the reference that each one's reply will have."""

    def __init__(self) -> None:
        self._calls: dict[Any, Call] = {}

    def __setitem__(self, reference: Any, call: Call) -> None:
        self._calls[reference] = call

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._calls))

    def pop(self, reference: Any) -> Call | None:
        """The call, which is none any more; None where it was let go before."""
        return self._calls.pop(reference, None)

    def of_worker(self, number: int) -> list[Call]:
        """In the order in which it carries them out."""
        return [call for call in self._calls.values() if call.worker == number]

    def of_job(self, ticket: int) -> Iterator[Work | Gather]:
        """Those whose replies the job waits for."""
        for call in self._calls.values():
            if not isinstance(call, Start) and call.ticket == ticket and not (isinstance(call, Work) and call.void):
                yield call

    def void(self, number: int, ticket: int) -> None:
        """Nobody wants what the worker does for the job any more."""
        self._void(lambda call: (call.worker, call.ticket) == (number, ticket))

    def void_copies(self, number: int, ticket: int) -> None:
        """Nobody wants what others do in the worker's place any more."""
        self._void(lambda call: (call.copies, call.ticket) == (number, ticket))

    def _void(self, is_meant: Callable[[Work], bool]) -> None:
        for reference, call in self._calls.items():
            if isinstance(call, Work) and is_meant(call):
                self._calls[reference] = replace(call, void=True)

    def forget(self, number: int) -> list[Call]:
        """Let go of all calls of a worker that is none any more; returns them."""
        calls = self.of_worker(number)
        self._calls = {reference: call for reference, call in self._calls.items() if call.worker != number}
        return calls

    def clear(self) -> None:
        """Let go of all."""
        self._calls.clear()
