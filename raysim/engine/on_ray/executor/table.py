"""Defines the table of dispatch on Ray: the state of each unit, the workers, and the calls in flight.

The units of a worker or of a node follow from the units' states. This module knows neither Ray nor results: it names a
result by the call that handed it over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from raysim.config.counted import counted
from raysim.engine.failure import Cause
from raysim.engine.job import UNITS, Kind
from raysim.engine.on_ray.executor.schedule import Schedule

WorkKind = tuple[Kind, int]
"""A job's kind, and the phase of the round or the run of a segment. The time of a unit of cost depends on both."""

Key = tuple[int, int | None]
"""Identifies a job's results on a worker: the ticket; for copies of a late worker's units, also that worker."""


Results = Literal["summed", "gathered"]
"""summed: workers add up a job's results and hold the sums until the hand-over. gathered: the sums that workers hand
over are first added up on their node."""


class Unit(NamedTuple):
    """The state of a unit.

    waiting: no worker has it; the job's schedule decides which worker takes it next. called: `call`, in flight, assigns
    it to `worker`. held: `worker` completed it in `call`, and holds the result. on_node: `call` handed the result over;
    it is on `node`. arrived: `call` handed the result over; the driver has it.
    """

    state: Literal["waiting", "called", "held", "on_node", "arrived"]
    call: int = -1
    worker: int | None = None
    node: str = ""


WAITING = Unit("waiting")


class Ping(NamedTuple):
    """Wait until a worker replies: a new one has started then; any other is still there."""

    worker: int


class Work(NamedTuple):
    """Carry out units on a worker; with `hand_over`, then hand over all results that it holds under the key.

    apart: the results stay on the worker's node. late_worker: the worker to which the units are also assigned, if these
    are copies. cancelled: the reply will be ignored. work, cost: they give the expected time.
    """

    worker: int
    ticket: int
    units: tuple[int, ...]
    hand_over: bool
    apart: bool
    late_worker: int | None
    work: WorkKind
    cost: float
    cancelled: bool = False

    @property
    def key(self) -> Key:
        """The key of the results. Copies have another one, because their worker may hold other units of the job."""
        return self.ticket, self.late_worker


class Gather(NamedTuple):
    """Send results on a node, which the calls `handed` handed over, to the driver; `worker` adds them up first, None if
    there is only one record."""

    worker: int | None
    ticket: int
    node: str
    handed: tuple[int, ...]


Call = Ping | Work | Gather


@dataclass
class Worker:
    """A worker that has not been ended.

    node: empty until it has started. since_s: start of its present call. held_s: seconds of work since its last
    hand-over. broadcasts: keys whose broadcast it has, or will have after the calls in flight. runs: the runs of the
    segments that were assigned to it. deaths: of those in whose place it is, that died before they had started.
    """

    node: str = ""
    since_s: float = 0.0
    held_s: float = 0.0
    broadcasts: frozenset[Key] = frozenset()
    runs: frozenset[int] = frozenset()
    deaths: int = 0


@dataclass(frozen=True)
class JobFacts:
    """The properties of a job that the rules use.

    num_bytes: size of its broadcast. runs: the runs of the segment; empty if the workers have only one run.
    """

    round: int
    work: WorkKind
    costs: Sequence[float]
    num_bytes: int
    results: Results
    runs: tuple[int, ...] = ()

    @cached_property
    def mean_cost(self) -> float:
        """Of a unit."""
        return sum(self.costs) / len(self.costs) if self.costs else 0.0

    @property
    def measured(self) -> list[WorkKind]:
        """The kinds of work that its seconds measure: for a segment one per run, because runs may separate later."""
        return [(self.work[0], run) for run in self.runs] or [self.work]

    def one(self, unit: int) -> str:
        """A unit as messages name it."""
        return self._named(f"{UNITS[self.work[0]]} {unit}")

    def several(self, num: int) -> str:
        """So many units as messages name them."""
        return self._named(counted(num, UNITS[self.work[0]]))

    def _named(self, units: str) -> str:
        if self.runs:
            return f"a segment of {counted(len(self.runs), 'run')} from round {self.round}"
        return f"{units} of round {self.round}"


@dataclass
class JobState:
    """A job in flight.

    failures: by cause and unit. retries: failures after which units ran again. raced: late workers whose units another
    worker carries out too. done_cost, busy_s: cost and working seconds of the completed units. owing: workers that have
    units whose results no call in flight hands over. landed: by node, the calls whose results are there and are not yet
    being gathered. The last two follow from units and calls; at every reply of a thousand workers there is no time to
    look through all of them.
    """

    ticket: int
    facts: JobFacts
    schedule: Schedule
    units: dict[int, Unit]
    failures: dict[tuple[Cause, int], int] = field(default_factory=dict)
    retries: int = 0
    raced: frozenset[int] = frozenset()
    done_cost: float = 0.0
    busy_s: float = 0.0
    owing: dict[int, None] = field(default_factory=dict)
    landed: dict[str, list[int]] = field(default_factory=dict)

    def cost(self, units: Iterable[int]) -> float:
        """The total cost of the units."""
        return sum(self.facts.costs[unit] for unit in units)

    def units_of(self, worker: int) -> set[int]:
        """The units of the worker whose results it has not handed over."""
        return {index for index, unit in self.units.items() if unit.worker == worker}

    def units_handed(self, calls: Sequence[int]) -> set[int]:
        """The units whose results these calls handed over, and that are still on a node."""
        return {index for index, unit in self.units.items() if unit.state == "on_node" and unit.call in calls}

    def move(self, units: Iterable[int], to: Unit) -> None:
        """Change the state of units."""
        self.units.update(dict.fromkeys(units, to))


@dataclass
class DispatchTable:
    """The whole state of dispatch.

    nodes: identities in order of appearance, the driver's first. last_alive_s: the last time when a worker was known to
    be alive. calls: by number, in the order in which they were sent; a worker carries out its calls in that order.
    calls_of, workers_on: the same calls by worker, and the workers by node. seconds_per_cost: as last measured.
    num_workers, num_calls: numbers of workers and calls so far. num_given_up: places in which no worker could start.
    """

    nodes: tuple[str, ...]
    last_alive_s: float
    workers: dict[int, Worker] = field(default_factory=dict)
    calls: dict[int, Call] = field(default_factory=dict)
    calls_of: dict[int | None, dict[int, Call]] = field(default_factory=dict)
    workers_on: dict[str, list[int]] = field(default_factory=dict)
    jobs: dict[int, JobState] = field(default_factory=dict)
    seconds_per_cost: dict[WorkKind, float] = field(default_factory=dict)
    num_workers: int = 0
    num_calls: int = 0
    num_given_up: int = 0

    def put(self, number: int, call: Call) -> None:
        """Add a call, or change one."""
        self.calls[number] = call
        self.calls_of.setdefault(call.worker, {})[number] = call

    def remove(self, number: int) -> Call:
        """Remove a call, and return it."""
        call = self.calls.pop(number)
        del self.calls_of[call.worker][number]
        return call

    def place(self, worker: int, node: str) -> None:
        """Note that a worker has started on a node, or that it is still there."""
        if not self.workers[worker].node:
            self.workers[worker].node = node
            self.workers_on.setdefault(node, []).append(worker)
        if node not in self.nodes:
            self.nodes += (node,)

    def displace(self, worker: int) -> Worker:
        """Remove a worker, with its calls, and return it."""
        ended = self.workers.pop(worker)
        if ended.node:
            self.workers_on[ended.node].remove(worker)
        for number in self.calls_of.pop(worker, {}):
            del self.calls[number]
        return ended

    def available(self) -> dict[int, int]:
        """The workers to which units may be assigned, each with its number of calls with units.

        Workers that are starting, or that still carry out a cancelled call, are not available.
        """
        return self._available(self.workers)

    def available_on(self, node: str) -> dict[int, int]:
        """The available workers on the node."""
        return self._available(sorted(self.workers_on.get(node, ())))

    def _available(self, workers: Iterable[int]) -> dict[int, int]:
        loads: dict[int, int] = {}
        for number in workers:
            load = 0
            for call in self.calls_of.get(number, {}).values():
                if isinstance(call, Ping) or (isinstance(call, Work) and call.cancelled):
                    break
                load += isinstance(call, Work) and bool(call.units)
            else:
                if self.workers[number].node:
                    loads[number] = load
        return loads

    def by_node(self, workers: Iterable[int]) -> list[int]:
        """The workers in the order of their nodes."""
        place = {node: index for index, node in enumerate(self.nodes)}
        return sorted(workers, key=lambda number: (place[self.workers[number].node], number))

    def awaits(self, ticket: int) -> bool:
        """Whether the job waits for a reply to any call."""
        return any(_awaited(call, ticket) for call in self.calls.values())

    def awaits_work_of(self, node: str, ticket: int) -> bool:
        """Whether a worker on the node still has a call of the job."""
        calls = (call for worker in self.workers_on[node] for call in self.calls_of.get(worker, {}).values())
        return any(type(call) is Work and _awaited(call, ticket) for call in calls)

    def last_hand_over(self, worker: int, ticket: int) -> int:
        """The last call in flight that hands over the worker's results of the job; -1 if there is none."""
        found = (
            number
            for number, call in self.calls_of.get(worker, {}).items()
            if type(call) is Work and call.hand_over and not call.cancelled and call.key == (ticket, None)
        )
        return max(found, default=-1)

    def expected_s(self, work: WorkKind, cost: float) -> float | None:
        """The expected seconds for this cost; None if this kind of work has not been measured yet."""
        return cost * self.seconds_per_cost[work] if work in self.seconds_per_cost else None


def _awaited(call: Call, ticket: int) -> bool:
    return not isinstance(call, Ping) and call.ticket == ticket and not (isinstance(call, Work) and call.cancelled)
