"""Giving work out: workers pull units while there are any, then hand over their sums."""

from __future__ import annotations

import math
from collections.abc import Iterable

from raysim.engine.on_ray.crew import Crew
from raysim.engine.on_ray.gather import gather
from raysim.engine.on_ray.pace import Pace
from raysim.engine.on_ray.running import Running
from raysim.engine.on_ray.workers import Worker

WORTH_A_CALL_S = 0.01
"""Short units share a call until they are expected to take this long: a call itself costs about a millisecond."""


def give_out(jobs: Iterable[Running], crew: Crew, pace: Pace) -> None:
    """Fill every worker's queue; where a job has nothing left to give, ask for its sums."""
    for running in jobs:
        while len(running.schedule) and _give_a_call_each(running, crew, pace):
            pass
        if not len(running.schedule):
            for number, worker in crew.workers.items():
                if worker.held.get(running.ticket):
                    crew.give(number, running, (), hand_over=True)
            gather(running, crew)


def _give_a_call_each(running: Running, crew: Crew, pace: Pace) -> bool:
    """Give every worker one more call, where there are units for it; returns whether there were for any."""
    taken = {number: _take(worker, number, running, pace) for number, worker in crew.workers.items()}
    for number, units in taken.items():
        if units:
            crew.give(number, running, units, hand_over=not len(running.schedule))
    return any(taken.values())


def _take(worker: Worker, number: int, running: Running, pace: Pace) -> tuple[int, ...]:
    """Units for one more call of the worker: one, or several short ones."""
    if not worker.is_free:
        return ()
    taken: list[int] = []
    expected_s = 0.0
    while not taken or expected_s < WORTH_A_CALL_S:
        # Only the first unit of a call may come from another worker: it may be idle, and what follows is its own.
        unit = running.schedule.take(number, math.inf if taken else running.least_to_take())
        if unit is None:
            break
        taken.append(unit)
        expected_s += pace.expected_s(running.work, running.cost((unit,))) or WORTH_A_CALL_S
    return tuple(taken)
