"""Hosts as Ray actors, each pinned to a worker's share of a node."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from ray import exceptions

from raysim.engine import wire
from raysim.engine.groups import Group
from raysim.engine.hosts import Ended
from raysim.engine.on_ray.cluster import Placement, wait_for_pools
from raysim.engine.on_ray.data_on_nodes import Sent, received, sent
from raysim.engine.plan import Plan
from raysim.engine.segment import Advanced, Host
from raysim.errors import RaysimError
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
        if torch.cuda.is_available() and 0 < gpus < 1:
            torch.cuda.set_per_process_memory_fraction(gpus)
        self._name = f"worker {index} (process {os.getpid()})"
        self._host = Host(self._name)

    def ready(self) -> str:
        """Where this host runs, once it can work."""
        return f"{self._name} on {ray.util.get_node_ip_address()}"

    def advance(self, group: Group, packed: Sequence[Any], plans: Sequence[tuple[int, Any, Sent]]) -> list[Any]:
        """`Host.advance` with packed states, after being told of runs: (number, plan without data, its data)."""
        for number, plan, dataset in plans:
            self._host.learn(number, replace(ray.get(plan), dataset=received(dataset)))
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
        self.num = placement.workers
        self._indices = itertools.count()
        self._free: list[Any] = []
        self._busy: dict[Any, tuple[Any, Group]] = {}
        self._told: dict[Any, set[int]] = {}
        self._plans: dict[int, tuple[Any, Sent]] = {}
        self._datasets: dict[str, Sent] = {}
        for _ in range(self.num):
            self._start()
        try:
            wait_for_pools([actor.ready.remote() for actor in self._free], placement)
        except BaseException:
            self.close()
            raise

    def learn(self, number: int, plan: Plan) -> None:
        """Put the plan, and its data once for all runs that share them, where every node can map them."""
        data = plan.dataset.fingerprint
        if data not in self._datasets:
            self._datasets[data] = sent(plan.dataset)
        self._plans[number] = ray.put(replace(plan, dataset=None)), self._datasets[data]  # type: ignore[arg-type]

    def keep_only(self, numbers: Collection[int]) -> None:
        """See `Hosts`."""
        self._plans = {number: plan for number, plan in self._plans.items() if number in numbers}
        for actor, told in self._told.items():
            told.intersection_update(numbers)
            actor.keep_only.remote(set(numbers))

    def free(self) -> bool:
        """See `Hosts`."""
        return bool(self._free)

    def give(self, group: Group, states: Sequence[ServerState]) -> None:
        """To a host that knows the runs already, where one is free: what it made for them is there."""
        actor = max(self._free, key=lambda actor: len(self._told[actor].intersection(group)))
        self._free.remove(actor)
        new = [(number, list(self._plans[number])) for number in group if number not in self._told[actor]]
        # References inside a list are handed on as they are.
        plans = [(number, *references) for number, references in new]
        self._told[actor].update(group)
        packed = [wire.pack(state) for state in states]
        self._busy[actor.advance.remote(group, packed, plans)] = actor, group

    def next(self) -> Ended:
        """See `Hosts`; a host that died is replaced."""
        (reference,), _ = ray.wait(list(self._busy), num_returns=1)
        actor, group = self._busy.pop(reference)
        try:
            made = ray.get(reference)
        except exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise
            del self._told[actor]
            ray.kill(actor)
            self._start()
            return Ended(group, failed="worker_lost")
        except exceptions.RayTaskError as error:
            self._free.append(actor)
            cause = getattr(error, "cause", None)
            if isinstance(cause, RaysimError):
                return Ended(group, error=cause)
            if isinstance(cause, torch.OutOfMemoryError):
                return Ended(group, failed="out_of_memory")
            raise
        self._free.append(actor)
        return Ended(group, tuple(Advanced(wire.unpack(state), rounds) for state, rounds in made))

    def close(self) -> None:
        """See `Hosts`."""
        for actor in self._told:
            ray.kill(actor)
        self._told, self._free, self._busy = {}, [], {}

    def _start(self) -> None:
        place = self._placement
        # raysim alone retries: see executor.py.
        options = ray.remote(HostActor).options(
            num_cpus=place.cpus, num_gpus=place.gpus, max_restarts=0, max_task_retries=0
        )
        actor = options.remote(next(self._indices), place.gpus, self._log_level)
        self._told[actor] = set()
        self._free.append(actor)
