"""Carries one unit of work out again from time to time, and compares the bits of what it makes.

A part that keeps something from call to call may give other numbers only after many calls, so no trial at a run's start
shows it. A pool keeps one of its first units, with a digest of its result: whenever a difference began, each later
repetition shows it. A repetition changes no number, and stores nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from raysim import card
from raysim.algorithm.local_context import ClientStates
from raysim.client.local_training import ClientFailure
from raysim.engine.worker.result_digest import digest
from raysim.engine.worker.watched_states import WatchedStates

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

FIRST = 200
"""Units of a pool before its first repetition, which costs half a per cent of them; the others cost less."""

CANDIDATES = 8
"""Of so many first units the smallest is kept, so that a large client's is not repeated."""

LARGEST = 1 << 26
"""Bytes that a kept unit may hold: a model, vectors beside it, client states. A larger unit is not kept."""


def is_due(count: int) -> bool:
    """Whether the kept unit is carried out again behind this unit, counted from 1.

    >>> [count for count in range(1, 2000) if is_due(count)]
    [200, 400, 800, 1600]
    """
    times, rest = divmod(count, FIRST)
    return rest == 0 and times.bit_count() == 1


@dataclass(frozen=True)
class Repeatable(Generic[R_co]):
    """A unit that can be carried out again.

    round, index: for messages. carry_out: a function of client states, if clients keep any; it depends on nothing else
    that changes. size: returns its examples. num_bytes: returns what it holds.
    """

    round: int
    index: int
    carry_out: Callable[[ClientStates | None], R_co]
    size: Callable[[], int]
    num_bytes: Callable[[], int]


class Difference(NamedTuple):
    """A unit of a round gave something else again, after so many units; failure: it failed then."""

    round: int
    index: int
    count: int
    failure: ClientFailure | None


@dataclass(frozen=True)
class _Kept:
    """The unit, its size, the client states that it read if clients keep any, and the digest of what it made."""

    unit: Repeatable[object]
    size: int
    read: dict[int, Tensor | None] | None
    digest: bytes


class RepeatedUnit:
    """The unit of one kind that a pool carries out again.

    Args:
        alone: what every unit is carried out in, so that it does not depend on those before it.
        tell: what is done about a difference; may raise.
    """

    def __init__(self, alone: Callable[[], AbstractContextManager[object]], tell: Callable[[Difference], None]) -> None:
        self._alone, self._tell = alone, tell
        self._count = 0
        self._kept: _Kept | None = None

    def carry_out(self, unit: Repeatable[R], states: ClientStates | None = None) -> R:
        """Carry the unit out and return its result; behind some units, carry the kept one out again.

        Raises:
            ClientFailure: this unit failed, and not the repetition.
        """
        self._count += 1
        size = unit.size() if self._count <= CANDIDATES else 0
        result = self._keep(unit, size, states) if self._is_kept(unit, size) else unit.carry_out(states)
        if self._kept is not None and is_due(self._count):
            self._repeat(self._kept)
        return result

    def _is_kept(self, unit: Repeatable[R], size: int) -> bool:
        is_smallest = self._kept is None or size < self._kept.size
        return size > 0 and is_smallest and unit.num_bytes() <= LARGEST

    def _keep(self, unit: Repeatable[R], size: int, states: ClientStates | None) -> R:
        read: dict[int, Tensor | None] | None = None if states is None else {}
        watched = None if read is None else WatchedStates(states, read)
        result = unit.carry_out(watched)
        self._kept = _Kept(unit, size, read, _digest(result, watched))
        return result

    def _repeat(self, kept: _Kept) -> None:
        watched = None if kept.read is None else WatchedStates(None, kept.read)
        unit = kept.unit
        failure: ClientFailure | None = None
        try:
            with self._alone():
                if _digest(unit.carry_out(watched), watched) == kept.digest:
                    return
        except ClientFailure as error:
            failure = error
        except torch.OutOfMemoryError:
            # The run itself had room for its work, and goes on.
            card.release_memory()
            return
        self._tell(Difference(unit.round, unit.index, self._count, failure))


def _digest(result: object, watched: WatchedStates | None) -> bytes:
    return digest((result, None if watched is None else watched.written))
