"""When a call is late, by what its units have been measured to cost: whether somebody else should do them too, or
whether its worker is given up. Decisions only: others carry them out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

from raysim.engine.on_ray.calls import Work
from raysim.engine.on_ray.crew import Crew
from raysim.engine.on_ray.pace import Pace

SLOW, SLOW_S = 3.0, 5.0
"""Slow: it runs longer than this many times what is expected, and longer than this. A free worker does it too."""

HUNG, HUNG_S = 20.0, 60.0
"""Hung: the same, and its worker is ended."""

HAND_OVER_S = 10.0
"""What a call without units is expected to take, however large the sums and the updates are."""


class Late(NamedTuple):
    """A worker that is slow, or hung, with a call that has run for `running_s`."""

    worker: int
    running_s: float
    hung: bool


def late(crew: Crew, pace: Pace) -> Iterator[Late]:
    """Those that are late now; each is looked at when it is asked for."""
    now_s = time.monotonic()
    for number, worker in crew.workers.items():
        first = next((call for call in crew.calls.of_worker(number) if isinstance(call, Work)), None)
        if first is None:
            continue
        running_s = now_s - worker.since_s
        expected_s = pace.expected_s(first.work, first.cost) if first.units else HAND_OVER_S
        hung = is_hung(running_s, expected_s)
        if hung or is_slow(running_s, expected_s):
            yield Late(number, running_s, hung)


def is_slow(running_s: float, expected_s: float | None) -> bool:
    """Whether units that were to take `expected_s` (None: never measured) are worth doing twice."""
    return expected_s is not None and running_s > max(SLOW_S, SLOW * expected_s)


def is_hung(running_s: float, expected_s: float | None) -> bool:
    """Whether a call that was to take `expected_s` will never end."""
    return expected_s is not None and running_s > max(HUNG_S, HUNG * expected_s)
