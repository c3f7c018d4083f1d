"""Hosts as Ray actors, each pinned to a worker's share of a node."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from ray import exceptions

from raysim.engine import numerics, wire
from raysim.engine.many.groups import Group
from raysim.engine.many.hosts import SegmentEnded
from raysim.engine.many.segment import Advanced, Host
from raysim.engine.on_ray.cluster import sendable
from raysim.engine.on_ray.cluster.cluster import (
    WAIT_FOR_RESOURCES_S,
    Growth,
    Placement,
    actor_options,
    no_worker,
    wait_for_pools,
)
from raysim.engine.on_ray.cluster.data_on_nodes import SentDataset, receive, send
from raysim.engine.on_ray.cluster.raised import cause_of, own_error
from raysim.engine.on_ray.cluster.whereabouts import Whereabouts, here
from raysim.engine.plan.plan import Plan
from raysim.errors import ResourceError
from raysim.server.state import ServerState

log = logging.getLogger("raysim")


class HostActor:
    """The actor around a host.

    Args:
        index: the worker's number, for messages.
        gpus: the share of a card that Ray gave; it caps this process's share of the card's memory.
        level: from which on raysim's log says something, as where the runs were started.
    """

    def __init__(self, index: int, gpus: float, level: int) -> None:
        log.setLevel(level)
        self._name = f"worker {index} (process {os.getpid()})"
        self._host = Host(self._name, numerics.take_share(gpus))

    def ready(self) -> Whereabouts:
        """Where this host runs, once it can work."""
        return here(self._name)

    def advance(self, group: Group, packed: Sequence[Any], plans: Sequence[tuple[int, Any, SentDataset]]) -> list[Any]:
        """`Host.advance` with packed states, after being told of runs: (number, plan without data, its data)."""
        for number, plan, dataset in plans:
            self._host.learn(number, replace(ray.get(plan), dataset=receive(dataset)))
        try:
            advanced = self._host.advance(group, [wire.unpack(state) for state in packed])
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise
        return [(wire.pack(own.state), own.rounds) for own in advanced]

    def keep_only(self, numbers: Collection[int]) -> None:
        """See `Host`."""
        self._host.keep_only(numbers)


class OnRayHosts:
    """See `Hosts`.

    Raises:
        ResourceError: Ray does not have what `placement` asks for.
    """

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._log_level = log.getEffectiveLevel()
        self._indices = itertools.count()
        self._starting: dict[Any, Any] = {}
        """Actors by the reference that is there when they are."""
        self._free: list[Any] = []
        self._busy: dict[Any, tuple[Any, Group]] = {}
        self._told: dict[Any, set[int]] = {}
        self._plans: dict[int, tuple[Any, SentDataset]] = {}
        self._datasets: dict[str, SentDataset] = {}
        self._growth = Growth(placement)
        for _ in range(placement.workers):
            self._start()
        try:
            wait_for_pools(list(self._starting), placement)
        except BaseException:
            self.close()
            raise
        for reference in list(self._starting):
            self._free.append(self._starting.pop(reference))

    @property
    def num(self) -> int:
        """See `Hosts`; those that wait for room on a node do not count."""
        return len(self._free) + len(self._busy)

    def learn(self, number: int, plan: Plan) -> None:
        """Put the plan, and its data once for all runs that share them, where every node can map them."""
        sendable.check(plan)
        data = plan.dataset.fingerprint
        if data not in self._datasets:
            self._datasets[data] = send(plan.dataset)
        self._plans[number] = ray.put(replace(plan, dataset=None)), self._datasets[data]  # type: ignore[arg-type]

    def keep_only(self, numbers: Collection[int]) -> None:
        """See `Hosts`."""
        self._plans = {number: plan for number, plan in self._plans.items() if number in numbers}
        for actor, told in self._told.items():
            if not told <= set(numbers):
                told.intersection_update(numbers)
                actor.keep_only.remote(set(numbers))

    def free(self) -> bool:
        """See `Hosts`; where all were lost, waits for one to start."""
        for _ in range(self._growth.lacking(len(self._starting))):
            self._start()
        deadline_s = time.monotonic() + WAIT_FOR_RESOURCES_S
        while not self._free and not self._busy:
            if time.monotonic() > deadline_s:
                raise ResourceError(no_worker())
            self._wait(list(self._starting), max(0.0, deadline_s - time.monotonic()))
        return bool(self._free)

    def give(self, group: Group, states: Sequence[ServerState]) -> None:
        """To a host that knows the runs already, where one is free: what it made for them is there."""
        actor = max(self._free, key=lambda actor: len(self._told[actor].intersection(group)))
        self._free.remove(actor)
        # References inside a list are handed on as they are.
        plans = [(number, *self._plans[number]) for number in group if number not in self._told[actor]]
        self._told[actor].update(group)
        packed = [wire.pack(state) for state in states]
        self._busy[actor.advance.remote(group, packed, plans)] = actor, group

    def next(self) -> SegmentEnded:
        """See `Hosts`; a host that died, or went with its node, is replaced."""
        ended = None
        while ended is None:
            ended = self._wait([*self._busy, *self._starting], None)
        actor, group = self._busy.pop(ended)
        try:
            made = ray.get(ended)
        except exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise
            return self._lost(actor, group)
        except exceptions.RayTaskError as error:
            # Before the next one, because Ray makes it of the class of its cause as well.
            self._free.append(actor)
            if (own := own_error(error)) is not None:
                return SegmentEnded(group, error=own)
            if isinstance(cause_of(error), torch.OutOfMemoryError):
                return SegmentEnded(group, failed="out_of_memory")
            raise
        except exceptions.ObjectLostError:
            return self._lost(actor, group)
        self._free.append(actor)
        return SegmentEnded(group, tuple(Advanced(wire.unpack(state), rounds) for state, rounds in made))

    def close(self) -> None:
        """See `Hosts`."""
        for actor in self._told:
            ray.kill(actor)
        self._told, self._free, self._busy, self._starting = {}, [], {}, {}

    def _start(self) -> None:
        options = ray.remote(HostActor).options(**actor_options(self._placement))
        actor: Any = options.remote(next(self._indices), self._placement.gpus, self._log_level)
        self._told[actor] = set()
        self._starting[actor.ready.remote()] = actor

    def _wait(self, references: list[Any], timeout_s: float | None) -> Any:
        """Until one of them is there; one of a host that has started makes it free, any other is returned."""
        ready, _ = ray.wait(references, num_returns=1, timeout=timeout_s)
        if not ready or ready[0] not in self._starting:
            return ready[0] if ready else None
        actor = self._starting.pop(ready[0])
        try:
            ray.get(ready[0])
        except exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise
            self._replace(actor)
        else:
            self._free.append(actor)
        return None

    def _lost(self, actor: Any, group: Group) -> SegmentEnded:
        self._replace(actor)
        return SegmentEnded(group, failed="worker_lost")

    def _replace(self, actor: Any) -> None:
        del self._told[actor]
        # It may only be out of reach.
        ray.kill(actor)
        # Its node may be lost: those who have nothing to do are given nothing until they have said that they are there.
        for idle in self._free:
            self._starting[idle.ready.remote()] = idle
        self._free = []
        self._start()
