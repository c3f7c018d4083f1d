"""Carries one unit of work out again from time to time, and compares the bits of what it makes.

A part that keeps something from call to call may give other numbers only after many calls, so no trial at a run's start
shows it. A pool keeps one of its first units, with a digest of its result: whenever a difference began that lasts and
concerns these clients, each later repetition shows it. A repetition changes no number, and stores nothing.
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
from raysim.errors import RaysimError
from raysim.models import memory

U = TypeVar("U")
R = TypeVar("R")

FIRST = 256
"""The unit of a pool behind which its first repetition is: repetitions cost at most 0.4 % of the units so far."""

CANDIDATES = 4
"""Of so many first units the smallest is kept, so that a large client's is not repeated."""

LARGEST = 1 << 26
"""Bytes that a kept unit may hold: a model, vectors beside it, client states. A larger unit is not kept."""


def is_due(count: int) -> bool:
    """Whether the kept unit is carried out again behind this unit, counted from 1.

    >>> [count for count in range(1, 2500) if is_due(count)]
    [256, 512, 1024, 2048]
    """
    return count >= FIRST and count.bit_count() == 1


class GaveOtherwise(NamedTuple, Generic[U]):
    """The unit gave something else again, behind so many units of the pool; failure: what was raised then."""

    unit: U
    behind: int
    failure: BaseException | None


class UnitWork(NamedTuple, Generic[U, R]):
    """How units of one kind are carried out.

    carry_out: of a unit and client states, if clients keep any; depends on nothing else that changes. size: a unit's
    examples. num_bytes: what it holds. kept: the unit without what only other units need. alone: what every unit is
    carried out in, so that it does not depend on those before it. tell: what is done about a difference; may raise.
    """

    carry_out: Callable[[U, ClientStates | None], R]
    size: Callable[[U], int]
    num_bytes: Callable[[U], int]
    kept: Callable[[U], U]
    alone: Callable[[], AbstractContextManager[object]]
    tell: Callable[[GaveOtherwise[U]], None]


@dataclass(frozen=True)
class _KeptUnit(Generic[U]):
    """The unit, its size, the client states that it read if clients keep any, and the digest of what it made."""

    unit: U
    size: int
    read: dict[int, Tensor | None] | None
    digest: int


class RepeatedUnit(Generic[U]):
    """The unit of one kind that a pool carries out again.

    It does not hold the pool, whose memory is then free as soon as nobody else holds it.
    """

    def __init__(self) -> None:
        self._count = 0
        self._kept: _KeptUnit[U] | None = None

    def carry_out(self, work: UnitWork[U, R], unit: U, states: ClientStates | None = None) -> R:
        """Carry the unit out and return its result; behind some units, carry the kept one out again.

        Raises:
            ClientFailure: this unit failed, and not the repetition.
        """
        self._count += 1
        size = work.size(unit) if self._count <= CANDIDATES else 0
        is_smaller = size > 0 and (self._kept is None or size < self._kept.size)
        if is_smaller and work.num_bytes(unit) <= LARGEST:
            result = self._keep(work, unit, size, states)
        else:
            result = work.carry_out(unit, states)
        if self._kept is not None and is_due(self._count):
            self._repeat(work, self._kept)
        return result

    def _keep(self, work: UnitWork[U, R], unit: U, size: int, states: ClientStates | None) -> R:
        read: dict[int, Tensor | None] | None = None if states is None else {}
        watched = None if read is None else WatchedStates(states, read)
        result = work.carry_out(unit, watched)
        self._kept = _KeptUnit(work.kept(unit), size, read, _digest(result, watched))
        return result

    def _repeat(self, work: UnitWork[U, R], kept: _KeptUnit[U]) -> None:
        watched = None if kept.read is None else WatchedStates(None, kept.read)
        failure: BaseException | None = None
        try:
            with work.alone():
                if _digest(work.carry_out(kept.unit, watched), watched) == kept.digest:
                    return
        except (ClientFailure, RaysimError, torch.OutOfMemoryError) as error:
            failure = error.__cause__ or error if isinstance(error, ClientFailure) else error
        if memory.is_lacking(failure):
            # The run itself had room for its work, and goes on.
            del failure
            card.release_memory()
            return
        work.tell(GaveOtherwise(kept.unit, self._count, failure))


def _digest(result: object, watched: WatchedStates | None) -> int:
    return digest((result, None if watched is None else watched.written))
