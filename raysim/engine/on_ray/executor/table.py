"""Holds the state of dispatch on Ray in one table: where each unit is, who works, and which calls are in flight.

What a worker or a node has is derived from where units are. Nothing here knows Ray, or what a result is: a result is
known by the call that handed it over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from raysim.engine.failure import Cause
from raysim.engine.on_ray.executor.schedule import Schedule

WorkKind = tuple[str, int]
"""A job's kind, and the phase of the round, or the run of a segment: what units of the same cost take depends on both.
"""

Key = tuple[int, int | None]
"""What a worker keeps a job's results under: the ticket, and whose units they are where that worker is late."""


Results = Literal["summed", "gathered"]
"""summed: workers hold a job's results, added up, until they are asked for them. gathered: what they hand over is added
up on their node first."""


class Unit(NamedTuple):
    """Where a unit is.

    waiting: nobody has it; the job's schedule says who takes it next. called: `worker` has it in `call`, which is in
    flight. held: `worker` carried it out in `call`, and has the result. on_node: the result was handed over in `call`,
    and lies on `node`. arrived: it was handed over in `call`, and the driver has it.
    """

    state: Literal["waiting", "called", "held", "on_node", "arrived"]
    call: int = -1
    worker: int | None = None
    node: str = ""


WAITING = Unit("waiting")


class Start(NamedTuple):
    """A worker is asked whether it is there."""

    worker: int


class Work(NamedTuple):
    """A worker carries out units; with `hand_over`, it then hands over the results of all that it holds under the key.

    apart: what is handed over stays on the worker's node. copies: the worker whose units these are, where that one is
    late. void: nobody wants the reply any more. work, cost: from which follows how long the units should take.
    """

    worker: int
    ticket: int
    units: tuple[int, ...]
    hand_over: bool
    apart: bool
    copies: int | None
    work: WorkKind
    cost: float
    void: bool = False

    @property
    def key(self) -> Key:
        """Another one for a copy, as its worker may hold units of the job that are its."""
        return self.ticket, self.copies


class Gather(NamedTuple):
    """Results that were handed over in the calls `handed`, and lie on a node, come to the driver; `worker` adds them up
    first, None where there is but one record."""

    worker: int | None
    ticket: int
    node: str
    handed: tuple[int, ...]


Call = Start | Work | Gather


@dataclass
class Worker:
    """A worker that has not been ended.

    node: empty until it has said where it is. since_s: when it began the call that it carries out. held_s: seconds of
    work since it last handed over. told: keys whose broadcast it has, or will have when the calls before are done.
    runs: those that it was given segments of.
    """

    node: str = ""
    since_s: float = 0.0
    held_s: float = 0.0
    told: frozenset[Key] = frozenset()
    runs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Facts:
    """What the rules know of a job.

    num_bytes: of its broadcast. runs: whose segment it is; none where the workers have one run only.
    """

    round: int
    work: WorkKind
    costs: Sequence[float]
    num_bytes: int
    results: Results
    runs: tuple[int, ...] = ()

    @property
    def measured(self) -> list[WorkKind]:
        """What its seconds are measured for: those of a segment for each of its runs, because they may part."""
        return [(self.work[0], run) for run in self.runs] or [self.work]

    def named(self, chunks: str) -> str:
        """Chunks of the job, or the segment that it is, as messages name them."""
        if self.runs:
            return f"a segment of {len(self.runs)} run(s) from round {self.round}"
        return f"{chunks} of round {self.round}"


@dataclass
class JobState:
    """A job in flight.

    failures: by cause and unit. retries: failures after which units ran again. raced: late workers whose units somebody
    else was given too. done_cost, busy_s: of the units that were carried out, the cost and the workers' seconds.
    """

    ticket: int
    facts: Facts
    schedule: Schedule
    units: dict[int, Unit]
    failures: dict[tuple[Cause, int], int] = field(default_factory=dict)
    retries: int = 0
    raced: frozenset[int] = frozenset()
    done_cost: float = 0.0
    busy_s: float = 0.0

    def cost(self, units: Iterable[int]) -> float:
        """What the units cost together."""
        return sum(self.facts.costs[unit] for unit in units)

    def of_worker(self, worker: int) -> set[int]:
        """The units that the worker was given, and whose results it has not handed over."""
        return {index for index, unit in self.units.items() if unit.worker == worker}

    def on_node(self, handed: Sequence[int]) -> set[int]:
        """The units whose results were handed over in these calls, and lie on a node."""
        return {index for index, unit in self.units.items() if unit.state == "on_node" and unit.call in handed}

    def move(self, units: Iterable[int], to: Unit) -> None:
        """Change where units are."""
        self.units.update(dict.fromkeys(units, to))


@dataclass
class DispatchTable:
    """The whole state of dispatch.

    nodes: identities in order of their appearance, the driver's first. seen_s: when some worker was last known to be
    there. calls: by number, in the order in which they were sent; a worker carries out its calls in that order.
    s_per_cost: seconds that a unit of cost takes, as last measured. num_workers, num_calls: how many there have been.
    """

    nodes: tuple[str, ...]
    seen_s: float
    workers: dict[int, Worker] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    jobs: dict[int, JobState] = field(default_factory=dict)
    s_per_cost: dict[WorkKind, float] = field(default_factory=dict)
    num_workers: int = 0
    num_calls: int = 0

    def able(self) -> dict[int, int]:
        """The workers that may be given units, each with how many calls with units it has.

        Not one that has yet to say that it is there, nor one that still is about what nobody wants.
        """
        loads = {number: 0 for number, one in self.workers.items() if one.node}
        for call in self.calls.values():
            if type(call) is Start or (type(call) is Work and call.void):
                loads.pop(call.worker, None)
            elif type(call) is Work and call.units and call.worker in loads:
                loads[call.worker] += 1
        return loads

    def by_node(self, workers: Iterable[int]) -> list[int]:
        """The workers in the order of their nodes."""
        return sorted(workers, key=lambda number: (self.nodes.index(self.workers[number].node), number))

    def able_on(self, node: str) -> dict[int, int]:
        """Those of them on the node."""
        return {number: load for number, load in self.able().items() if self.workers[number].node == node}

    def awaited(self, ticket: int) -> list[Work | Gather]:
        """The calls whose replies the job waits for."""
        calls = (call for call in self.calls.values() if not isinstance(call, Start) and call.ticket == ticket)
        return [call for call in calls if not (isinstance(call, Work) and call.void)]

    def asked(self, ticket: int) -> dict[int | None, int]:
        """By worker, the last call in flight that hands over what the worker has of the job."""
        return {
            call.worker: number
            for number, call in self.calls.items()
            if isinstance(call, Work) and call.hand_over and not call.void and call.key == (ticket, None)
        }

    def unasked(self, job: JobState) -> list[int]:
        """The workers that have units of the job whose results no call in flight hands over."""
        asked = self.asked(job.ticket)
        having = {unit.worker for unit in job.units.values() if unit.call > asked.get(unit.worker, -1)}
        return [number for number in self.workers if number in having]

    def lying(self, job: JobState) -> dict[str, list[int]]:
        """By node, the calls whose results lie there, and are not being gathered."""
        gathers = [call for call in self.awaited(job.ticket) if isinstance(call, Gather)]
        coming = {number for gather in gathers for number in gather.handed}
        found: dict[str, list[int]] = {}
        for node, number in {(unit.node, unit.call): None for unit in job.units.values() if unit.state == "on_node"}:
            if number not in coming:
                found.setdefault(node, []).append(number)
        return found

    def expected_s(self, work: WorkKind, cost: float) -> float | None:
        """What units of that cost should take; None where nothing of the kind was measured yet."""
        return cost * self.s_per_cost[work] if work in self.s_per_cost else None
