"""Ray's part under the executor, played on virtual time in this process: mishaps fall exactly where a test wants them.

The executor and its client pools are the real ones. Played are what Ray does for them (actors that carry out their
calls in order, objects that lie on nodes, waiting) and the work itself: a unit takes as long as the test says, and
comes to its own name. Names add up to the tree of sums in brackets, so that a unit that is missing, that was counted
twice or that was added out of order shows.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from ray import exceptions

from raysim.engine import on_ray
from raysim.engine.job import COMBINE, Part, RunStates, Shard
from raysim.engine.many.segment import SegmentUnit
from raysim.engine.on_ray.cluster.whereabouts import Whereabouts
from raysim.engine.on_ray.executor import client_pool, rules
from raysim.engine.on_ray.executor import on_ray as executor
from tests.support.dispatch_table import check

START_S = 1.0
"""What a worker takes to start."""

CALL_S = 0.001
"""What a call takes, beside the work."""

NUM_PARAMS = 16
"""Numbers in an update that is kept."""


def bracket(left: str, right: str) -> str:
    """How names add up."""
    return f"({left} {right})"


@dataclass(eq=False)
class Reference:
    """An object that will be there; `node`: where it lies, empty where it came to the driver with the reply."""

    ready: bool = False
    value: Any = None
    error: Exception | None = None
    node: str = ""

    def settle(self, value: Any = None, error: Exception | None = None, node: str = "") -> None:
        self.ready, self.value, self.error, self.node = True, value, error, node


@dataclass(frozen=True)
class Task:
    """A call: method, arguments, and where its results will be."""

    method: str
    args: tuple[Any, ...]
    results: list[Reference]


class Process:
    """A worker. node: empty until there is room for it on one."""

    def __init__(self, ray: SimulatedRay, number: int, make: Callable[[], Any]) -> None:
        self.number = number
        self.node = ""
        self.dead = False
        self._ray, self._make = ray, make
        self._instance: Any = None
        self._tasks: deque[Task] = deque()
        self._under_way: Task | None = None

    @property
    def works(self) -> bool:
        """Whether it has started and lives."""
        return self._instance is not None and not self.dead

    @property
    def holds(self) -> list[Any]:
        """What it keeps of jobs, while it has nothing to do."""
        pool = self._instance
        kept = [pool._held, pool._rows, pool._broadcasts] if self.works and not self._under_way else []
        return [each for each in kept if each]

    def start(self) -> None:
        if not self.dead:
            self._instance = self._ray.inside(self, self._make)
            self._next()

    def call(self, task: Task) -> None:
        if self.dead:
            self._ray.after(CALL_S, lambda: self._fail(task))
        else:
            self._tasks.append(task)
            self._next()

    def die(self) -> None:
        """Its calls end without a reply, and what waited for room takes its place."""
        self.dead = True
        for task in ([self._under_way] if self._under_way else []) + list(self._tasks):
            self._fail(task)
        self._tasks.clear()
        self._ray.fill()

    def _fail(self, task: Task) -> None:
        for result in task.results:
            result.settle(error=exceptions.RayActorError())

    def _next(self) -> None:
        if not self.works or self._under_way or not self._tasks:
            return
        task = self._under_way = self._tasks.popleft()
        values: list[Any] = []
        error: Exception | None = None
        try:
            args = self._ray.values(task.args)
            made = self._ray.inside(self, lambda: getattr(self._instance, task.method)(*args))
            values = list(made) if len(task.results) > 1 else [made]
        except Exception as cause:
            error = exceptions.RayTaskError(task.method, "", cause, ip="address").as_instanceof_cause()

        def reply() -> None:
            if self.dead:
                return
            self._under_way = None
            # At once where it takes no time, so that nothing else can come between.
            seconds = self._ray.reply_s()
            if seconds:
                self._ray.after(seconds, arrive)
            else:
                arrive()
            self._next()

        def arrive() -> None:
            for index, result in enumerate(task.results):
                # What a call returns first comes to the driver; each further result stays where it was made.
                result.settle(None if error else values[index], error, self.node if index else "")

        call_s = self._ray.combine_s if task.method == "combine" else CALL_S
        self._ray.after(call_s + self._ray.spent_s, reply)


@dataclass(frozen=True)
class Method:
    """What is sent to a worker."""

    process: Process
    name: str
    num_returns: int = 1

    def options(self, num_returns: int) -> Method:
        return Method(self.process, self.name, num_returns)

    def remote(self, *args: Any) -> Any:
        results = [Reference() for _ in range(self.num_returns)]
        self.process.call(Task(self.name, args, results))
        return results if self.num_returns > 1 else results[0]


class Handle:
    """What the driver has of a worker."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Method:
        return Method(self._process, name)


@dataclass
class SimulatedRay:
    """A cluster on virtual time; a segment takes what its unit takes.

    room: workers that each node holds, the driver's first. seconds: what a unit takes a worker, by its number; may
    raise what a unit may raise. combine_s: what it takes to add up a node's sums there. reply_s: what a reply takes to
    reach the driver, while its worker goes on. limit_s: when no job may be under way any more.
    start_s: what a worker takes to start.
    """

    room: dict[str, int]
    seconds: Callable[[int, Any], float] = lambda worker, unit: 1.0
    combine_s: float = CALL_S
    reply_s: Callable[[], float] = lambda: 0.0
    limit_s: float = 3000.0
    start_s: float = START_S
    now_s: float = 0.0
    spent_s: float = 0.0
    """Work of the call that is carried out."""
    processes: list[Process] = field(default_factory=list)
    """By number."""
    lost: set[str] = field(default_factory=set)
    """Nodes that are gone."""
    taken: set[str] = field(default_factory=set)
    """Nodes with room that others hold."""
    _inside: Process | None = None
    _events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: Any = field(default_factory=itertools.count)

    # What happens

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Have something happen."""
        heapq.heappush(self._events, (self.now_s + seconds, next(self._order), happens))

    def let_pass(self, seconds: float) -> None:
        """Have happen what happens in that time, while the driver does nothing."""
        self.wait([Reference()], timeout=seconds)

    def lose_node(self, node: str) -> None:
        """All its workers die at once, and what lay there is lost."""
        self.lost.add(node)
        for process in list(self.processes):
            if process.node == node and not process.dead:
                process.die()

    def inside(self, process: Process, act: Callable[[], Any]) -> Any:
        """What a worker does; the time that it takes passes for the worker, and not yet for the others."""
        self._inside, self.spent_s = process, 0.0
        try:
            return act()
        finally:
            self._inside = None

    def values(self, args: Sequence[Any]) -> list[Any]:
        """Arguments as a worker gets them: references among them were looked up."""
        return [self.get(arg) if isinstance(arg, Reference) else arg for arg in args]

    def fill(self) -> None:
        """Give those that wait for room what there is, on the node that has most."""
        for process in self.processes:
            if process.node or process.dead:
                continue
            node = max(self.room, key=self._free)
            if self._free(node):
                process.node = node
                self.after(self.start_s, process.start)

    def _free(self, node: str) -> int:
        held = sum(process.node == node and not process.dead for process in self.processes)
        return 0 if node in self.lost | self.taken else self.room[node] - held

    # What the executor asks Ray for

    def remote(self, actor: type) -> Any:
        def start(*args: Any) -> Handle:
            self.processes.append(Process(self, len(self.processes), lambda: actor(*self.values(args))))
            self.fill()
            return Handle(self.processes[-1])

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=start))

    def kill(self, actor: Handle) -> None:
        if not actor._process.dead:
            actor._process.die()

    def put(self, value: Any) -> Reference:
        return Reference(ready=True, value=value)

    def get(self, asked: Any) -> Any:
        if isinstance(asked, list):
            return [self.get(one) for one in asked]
        if asked.node in self.lost:
            raise exceptions.ObjectLostError("", None, "")
        if asked.error:
            raise asked.error
        return asked.value

    def wait(
        self, references: Sequence[Reference], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Reference], list[Reference]]:
        end_s = self.limit_s if timeout is None else self.now_s + timeout
        while sum(one.ready for one in references) < num_returns and self._events and self._events[0][0] <= end_s:
            self.now_s, _, happens = heapq.heappop(self._events)
            happens()
        ready = [one for one in references if one.ready][:num_returns]
        if len(ready) < num_returns:
            self.now_s = end_s
        assert self.now_s < self.limit_s, f"A job is still under way after {self.limit_s:g} s."
        return ready, [one for one in references if one not in ready]

    def cluster_resources(self) -> Mapping[str, float]:
        return {"CPU": sum(room for node, room in self.room.items() if node not in self.lost)}

    def available_resources(self) -> Mapping[str, float]:
        return {"CPU": sum(map(self._free, self.room))}

    def is_initialized(self) -> bool:
        return True

    def get_runtime_context(self) -> Any:
        return SimpleNamespace(get_node_id=lambda: next(iter(self.room)), get_job_id=lambda: "job")

    # What stands around it

    def clock(self) -> float:
        return self.now_s + (self.spent_s if self._inside else 0.0)

    def here(self, name: str) -> Whereabouts:
        assert self._inside is not None
        return Whereabouts(name, "address", self._inside.node)

    def pool(self, plan: Any, device: torch.device, name: str, memory: Any) -> SimulatedPool:
        assert self._inside is not None
        return SimulatedPool(self, self._inside.number)

    def host(self, name: str, share: float) -> SimulatedHost:
        assert self._inside is not None
        return SimulatedHost(self, self._inside.number)


@dataclass(frozen=True)
class SimulatedHost:
    """Carries out segments in the worker `number`: for each run, its number and where it went on from."""

    ray: SimulatedRay
    number: int

    def run(self, kind: str, sent: RunStates, index: int, unit: SegmentUnit, kept: None) -> list[str]:
        self.ray.spent_s += self.ray.seconds(self.number, unit)
        return [f"{run} from {state}" for run, state in zip(unit.plans, sent.states, strict=True)]


@dataclass(frozen=True)
class SimulatedPool:
    """Carries out units of the worker `number`: names, and shards of what names kept."""

    ray: SimulatedRay
    number: int

    def run(self, kind: str, broadcast: Any, index: int, unit: Any, kept: list[torch.Tensor] | None) -> str:
        self.ray.spent_s += self.ray.seconds(self.number, unit)
        if kept is not None:
            kept.append(torch.full((NUM_PARAMS,), float(index)))
        return f"{sorted(i for part in unit.parts for i in cast(Part, part))}" if isinstance(unit, Shard) else str(unit)


def checked(table: Any, event: Any, now_s: float) -> list[Any]:
    """The rules, and that their table is in order after every event."""
    commands = rules.change(table, event, now_s)
    check(table)
    return commands


def simulated(patch: pytest.MonkeyPatch, room: dict[str, int]) -> SimulatedRay:
    """A cluster in Ray's place until the patch is undone."""
    ray = SimulatedRay(room)
    time = SimpleNamespace(monotonic=ray.clock, perf_counter=ray.clock, time=ray.clock)
    for module in [module for name, module in sys.modules.items() if name.startswith(on_ray.__name__)]:
        for name, played in (("ray", ray), ("time", time), ("COMBINE", dict.fromkeys(COMBINE, bracket))):
            if hasattr(module, name):
                patch.setattr(module, name, played)
    patch.setattr(executor, "change", checked)
    patch.setattr(executor, "send_plan", lambda plan, wait_s: plan)
    patch.setattr(client_pool, "receive_plan", lambda plan: plan)
    patch.setattr(client_pool, "here", ray.here)
    # A pool sets the level of its process, which is here that of all tests.
    patch.setattr(client_pool, "logging", SimpleNamespace(getLogger=lambda name: logging.Logger(name)))
    patch.setattr(client_pool, "Pool", ray.pool)
    patch.setattr(client_pool, "Host", ray.host)
    return ray
