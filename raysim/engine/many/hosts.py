"""Defines hosts, which carry out segments, one each at a time: in this process here, on Ray in on_ray/executor/."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from raysim.engine.failure import Cause
from raysim.engine.many.groups import Group
from raysim.engine.many.segment import Advanced, Host
from raysim.engine.plan.plan import Plan
from raysim.errors import RaysimError
from raysim.server.state import ServerState


@dataclass(frozen=True)
class SegmentEnded:
    """A segment that ended: what its runs made of it, or why they did not.

    failed: the host died, or its device had too little memory; the runs can go on from where they were.
    """

    group: Group
    advanced: tuple[Advanced, ...] = ()
    error: RaysimError | None = None
    failed: Cause | None = None


class Hosts(Protocol):
    """Carries out segments; those that are given out together run side by side."""

    @property
    def num(self) -> int:
        """How many work at a time."""
        ...

    def learn(self, number: int, plan: Plan) -> None:
        """Be told a run, before its first segment."""
        ...

    def keep_only(self, numbers: Collection[int]) -> None:
        """Let go of all other runs."""
        ...

    def free(self) -> bool:
        """Whether a segment that is given out now would start now."""
        ...

    def give(self, group: Group, states: Sequence[ServerState]) -> None:
        """Start a segment; somebody is free."""
        ...

    def next(self) -> SegmentEnded:
        """Wait for a segment to end; one is under way."""
        ...

    def close(self) -> None:
        """End the hosts; may be called twice."""
        ...


class Here:
    """One host, this process: a segment is carried out when its end is waited for."""

    num = 1

    def __init__(self) -> None:
        self._host = Host("this process")
        self._given: tuple[Group, Sequence[ServerState]] | None = None

    def learn(self, number: int, plan: Plan) -> None:
        """See `Hosts`."""
        self._host.learn(number, plan)

    def keep_only(self, numbers: Collection[int]) -> None:
        """See `Hosts`."""
        self._host.keep_only(numbers)

    def free(self) -> bool:
        """See `Hosts`."""
        return self._given is None

    def give(self, group: Group, states: Sequence[ServerState]) -> None:
        """See `Hosts`."""
        self._given = group, states

    def next(self) -> SegmentEnded:
        """See `Hosts`."""
        assert self._given is not None
        (group, states), self._given = self._given, None
        try:
            return SegmentEnded(group, tuple(self._host.advance(group, states)))
        except RaysimError as error:
            return SegmentEnded(group, error=error)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return SegmentEnded(group, failed="out_of_memory")

    def close(self) -> None:
        """See `Hosts`."""
