"""The workers of a run: ClientPool actors, where they run, and what each of them has to do."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray

from raysim.engine.on_ray.client_pool import ClientPool
from raysim.engine.on_ray.cluster import WAIT_FOR_RESOURCES_S, Placement, actor_options, no_worker
from raysim.engine.on_ray.data_on_nodes import send_plan
from raysim.engine.on_ray.growth import Growth
from raysim.engine.on_ray.whereabouts import Whereabouts
from raysim.engine.plan import Plan
from raysim.errors import ResourceError

DEPTH = 2
"""Calls a worker has at a time: one running, one waiting, so that it never waits for the driver."""


class Begun(NamedTuple):
    """Workers that are starting.

    plan: a reference to what each of them carries out, for those to come. actors: numbered from 0.
    """

    plan: Any
    actors: tuple[Any, ...]


def begin(plan: Plan, placement: Placement) -> Begun:
    """Start a run's workers. Who calls this owns them: they end with that process."""
    sent = ray.put(send_plan(plan))
    threads = plan.experiment.engine.threads
    return Begun(sent, tuple(_actor(sent, number, placement, threads) for number in range(placement.workers)))


@dataclass
class Worker:
    """One worker as the driver sees it.

    node: empty until it is ready. in_flight: calls with units that it has. since_s: when it began the call that it
    carries out, by the monotonic clock. held_s: seconds of work since it last handed over.
    """

    actor: Any
    node: str = ""
    ready: bool = False
    """Whether it can work. One that waits for resources is given nothing until it has them, nor is one that is late
    with what somebody else did meanwhile until it has replied."""
    in_flight: int = 0
    since_s: float = 0.0
    held_s: float = 0.0
    held: dict[int, list[int]] = field(default_factory=dict)
    """Units by job that were given to the worker and whose sums no call was asked for yet."""
    told: set[int] = field(default_factory=set)
    """Jobs whose broadcast the worker has, or will have when the calls before are done."""

    @property
    def is_free(self) -> bool:
        """Whether it may be given a call."""
        return self.ready and self.in_flight < DEPTH

    @property
    def is_idle(self) -> bool:
        """Whether it has nothing to do."""
        return self.ready and not self.in_flight


class Workers:
    """Starts workers, knows them by number, and ends them.

    Args:
        begun: the first ones.
        placement: each one's share of a node.
        threads: intra-op threads of each.
    """

    def __init__(self, begun: Begun, placement: Placement, threads: int) -> None:
        self._plan, self._begun = begun.plan, list(begun.actors)
        self._placement, self._threads = placement, threads
        self._numbers = itertools.count()
        self._workers: dict[int, Worker] = {}
        self._growth = Growth(placement)
        self._seen_s = time.monotonic()
        """When some worker was last there."""
        self.nodes: list[str] = [ray.get_runtime_context().get_node_id()]
        """Identities of the nodes in order of their appearance; the driver's is the first."""

    def __getitem__(self, number: int) -> Worker:
        return self._workers[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._workers)

    def __contains__(self, number: int) -> bool:
        return number in self._workers

    def items(self) -> list[tuple[int, Worker]]:
        """Numbers and workers, the oldest first."""
        return list(self._workers.items())

    def ready(self) -> list[int]:
        """Those that can work, by node, so that neighbouring regions of work share one."""
        able = [(self.nodes.index(worker.node), number) for number, worker in self._workers.items() if worker.ready]
        return [number for _, number in sorted(able)]

    def of_node(self, node: str) -> list[int]:
        """Those that can work there."""
        return [number for number, worker in self._workers.items() if worker.ready and worker.node == node]

    def start(self) -> tuple[int, Any]:
        """Start one more; returns its number, and a reference that is there when it is ready."""
        number = next(self._numbers)
        actor = self._begun.pop(0) if self._begun else _actor(self._plan, number, self._placement, self._threads)
        self._workers[number] = Worker(actor)
        return number, actor.ready.remote()

    def note_ready(self, number: int, where: Whereabouts) -> None:
        """A worker said where it runs."""
        worker = self._workers[number]
        worker.node, worker.ready = where.node, True
        if where.node not in self.nodes:
            self.nodes.append(where.node)

    def lacking(self) -> int:
        """How many more there could be."""
        return self._growth.lacking(sum(not worker.node for worker in self._workers.values()))

    def check_any(self) -> None:
        """ResourceError where all workers are lost, and none could be started in their place for a while."""
        if self.ready():
            self._seen_s = time.monotonic()
        elif time.monotonic() - self._seen_s > WAIT_FOR_RESOURCES_S:
            raise ResourceError(no_worker())

    def end(self, number: int) -> Worker:
        """End one; returns what it was."""
        worker = self._workers.pop(number)
        if worker.node:
            self._seen_s = time.monotonic()
        # It may only be out of reach: ended for certain, nothing of it can be counted twice.
        ray.kill(worker.actor)
        return worker

    def close(self) -> None:
        """End all."""
        for number in list(self._workers):
            self.end(number)


def _actor(plan: Any, number: int, placement: Placement, threads: int) -> Any:
    return ray.remote(ClientPool).options(**actor_options(placement)).remote(plan, number, placement.gpus, threads)
