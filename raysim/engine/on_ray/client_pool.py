"""ClientPool: the Ray actor around a pool. Adds up what it trained until it is asked for it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
import torch
from torch import Tensor

from raysim.engine import numerics, wire
from raysim.engine.job import COMBINE, Kind, Shard
from raysim.engine.on_ray.data_on_nodes import Travelling, arrived
from raysim.engine.pool import Pool, sharded
from raysim.fold import Node, TreeFold
from raysim.server.updates import Bounds


@dataclass(frozen=True)
class Worked:
    """A call's reply.

    done: when each unit began and ended, by the Unix clock; shorter than what was asked for where memory ran out.
    sums: one packed record per maximal subtree of the units done since the last time, if they were to be handed over.
    """

    done: tuple[tuple[float, float], ...]
    sums: tuple[tuple[Node, Any], ...]
    out_of_memory: bool = False


class ClientPool:
    """Calls arrive in order; results of a job are folded as far as the tree allows and stay here until asked for.

    Args:
        travelling: the run; its data are fetched to this node where they are not here.
        index: the worker's number, for messages.
        gpus: the share of a card that Ray gave; it caps this process's share of the card's memory.
        threads: intra-op threads.
    """

    def __init__(self, travelling: Travelling, index: int, gpus: float, threads: int) -> None:
        plan = arrived(travelling)
        device = numerics.choose_device(gpus)
        numerics.fix(threads, device, plan.experiment.engine.precision)
        if device.type == "cuda" and gpus < 1:
            # Ray's fraction only counts pools; without a cap one of them could take the whole card.
            torch.cuda.set_per_process_memory_fraction(gpus)
        self._name = f"worker {index} (process {os.getpid()})"
        self._pool = Pool(plan, device, self._name)
        self._held: dict[int, TreeFold[Any]] = {}
        self._rows: dict[int, dict[int, list[Tensor]]] = {}
        self._broadcasts: dict[int, Any] = {}

    def ready(self) -> str:
        """Where this pool runs, once it can work."""
        return f"{self._name} on {ray.util.get_node_ip_address()}"

    def work(
        self,
        job: int,
        num_units: int,
        kind: Kind,
        packed: Any,
        units: Sequence[tuple[int, Any]],
        hand_over: bool,
        bounds: tuple[Bounds, ...],
    ) -> Any:
        """Carry out (index, unit) pairs in order and hold their results; with `hand_over`, send all that is held.

        `packed` is the job's broadcast, or None where a call before brought it; it is kept until the hand-over.

        Returns a `Worked`. Where the job keeps its updates (`bounds`), a call that hands over has 1 + len(bounds)
        results: then come the shards of the updates, each a mapping from unit to packed rows.
        """
        if packed is not None:
            self._broadcasts[job] = wire.unpack(packed)
        worked = self._carry_out(job, num_units, kind, units, bool(bounds))
        if not hand_over:
            return worked
        self._broadcasts.pop(job, None)
        if worked.out_of_memory:
            return (worked, *({} for _ in bounds)) if bounds else worked
        tree = self._held.pop(job, None)
        sums = () if tree is None else tuple((node, wire.pack(value)) for node, value in tree.take())
        worked = replace(worked, sums=sums)
        if not bounds:
            return worked
        parts = sharded(self._rows.pop(job, {}), bounds)
        return worked, *({unit: wire.pack(rows) for unit, rows in part.items()} for part in parts)

    def _carry_out(self, job: int, num_units: int, kind: Kind, units: Sequence[tuple[int, Any]], keep: bool) -> Worked:
        done: list[tuple[float, float]] = []
        for index, unit in units:
            start_s = time.time()
            if isinstance(unit, Shard):
                # The updates lie in the object store; this node maps the shard, copies it once, and lets go of it.
                parts = [{i: wire.unpack(rows) for i, rows in part.items()} for part in ray.get(list(unit.parts))]
                unit = replace(unit, parts=tuple(parts))
            rows: list[Tensor] | None = [] if keep else None
            try:
                value = self._pool.run(kind, self._broadcasts[job], index, unit, rows)
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
                return Worked(tuple(done), (), out_of_memory=True)
            self._held.setdefault(job, TreeFold(num_units, COMBINE[kind])).put_leaf(value, index)
            if rows is not None:
                self._rows.setdefault(job, {})[index] = rows
            done.append((start_s, time.time()))
        return Worked(tuple(done), ())
