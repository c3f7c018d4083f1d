"""ClientPool: the Ray actor around a pool. Adds up what it trained until it is asked for it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import ray
import torch
from torch import Tensor

from raysim.engine import numerics, wire
from raysim.engine.job import COMBINE, Kind, Shard
from raysim.engine.plan import Plan
from raysim.engine.pool import Pool, sharded
from raysim.fold import Node, TreeFold
from raysim.server.updates import Bounds


class ClientPool:
    """Calls arrive in order; units of a job are folded as far as the tree allows and stay here until `collect`.

    Args:
        plan: the run.
        index: the worker's number, for messages.
        gpus: the share of a card that Ray gave; it caps this process's share of the card's memory.
        threads: intra-op threads.
    """

    def __init__(self, plan: Plan, index: int, gpus: float, threads: int) -> None:
        device = numerics.choose_device(gpus)
        numerics.fix(threads, device, plan.experiment.engine.precision)
        if device.type == "cuda" and gpus < 1:
            # Ray's fraction only counts pools; without a cap one of them could take the whole card.
            torch.cuda.set_per_process_memory_fraction(gpus)
        self._name = f"worker {index} (process {os.getpid()})"
        self._pool = Pool(plan, device, self._name)
        self._held: dict[int, TreeFold[Any]] = {}
        self._rows: dict[int, dict[int, list[Tensor]]] = {}
        self._broadcast: tuple[int, Any] = (0, None)

    def ready(self) -> str:
        """Where this pool runs, once it can work."""
        return f"{self._name} on {ray.util.get_node_ip_address()}"

    def run(
        self, job: int, num_units: int, kind: Kind, packed: Any, index: int, unit: Any, keep: bool
    ) -> tuple[float, float]:
        """Carry out one unit and hold its result, with its updates where they are to be kept.

        Returns when it began and ended, by the Unix clock.
        """
        start_s = time.time()
        if self._broadcast[0] != job:
            self._broadcast = (job, wire.unpack(packed))
        if isinstance(unit, Shard):
            # The updates lie in the object store; this node maps the shard, copies it once, and lets go of it.
            parts = [{i: wire.unpack(rows) for i, rows in part.items()} for part in ray.get(list(unit.parts))]
            unit = replace(unit, parts=tuple(parts))
        rows = self._rows.setdefault(job, {}).setdefault(index, []) if keep else None
        value = self._pool.run(kind, self._broadcast[1], index, unit, rows)
        self._held.setdefault(job, TreeFold(num_units, COMBINE[kind])).put_leaf(value, index)
        return start_s, time.time()

    def collect(self, job: int, bounds: tuple[Bounds, ...]) -> Any:
        """Hand over the job's sums: one packed record per maximal subtree of the units done since the last time.

        With `bounds` the call has 1 + len(bounds) results: the sums, then a shard of the kept updates each, by unit.
        """
        tree = self._held.pop(job, None)
        nodes: list[tuple[Node, Any]] = [] if tree is None else [(n, wire.pack(v)) for n, v in tree.take()]
        if not bounds:
            return nodes
        parts = sharded(self._rows.pop(job, {}), bounds)
        return nodes, *({unit: wire.pack(rows) for unit, rows in part.items()} for part in parts)
