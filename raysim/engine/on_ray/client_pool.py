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
from raysim.engine.example_memory import ExampleMemory
from raysim.engine.job import COMBINE, Kind, Shard, on_host
from raysim.engine.on_ray.data_on_nodes import SentPlan, receive_plan
from raysim.engine.on_ray.whereabouts import Whereabouts, here
from raysim.engine.pool import Pool, sharded
from raysim.fold import Node, TreeFold
from raysim.server.updates import Bounds

Packed = tuple[tuple[Node, Any], ...]
"""Parts of the tree with their packed sums."""


@dataclass(frozen=True)
class Worked:
    """A call's reply.

    done: when each unit began and ended, by the Unix clock; shorter than what was asked for where memory ran out.
    sums: one packed record per maximal subtree of the units done since the last time, if they were to be handed over.
    parts: where sums stay on this node, which parts of the tree they are.
    """

    done: tuple[tuple[float, float], ...]
    sums: Packed = ()
    parts: tuple[Node, ...] = ()
    out_of_memory: bool = False


class ClientPool:
    """Calls arrive in order; results of a job are folded as far as the tree allows and stay here until asked for.

    Args:
        sent: the run; its data are fetched to this node where they are not here.
        index: the worker's number, for messages.
        gpus: the share of a card that Ray gave; it caps this process's share of the card's memory.
        threads: intra-op threads.
    """

    def __init__(self, sent: SentPlan, index: int, gpus: float, threads: int) -> None:
        plan = receive_plan(sent)
        device = numerics.choose_device(gpus)
        numerics.fix(threads, device, plan.experiment.engine.precision)
        self._name = f"worker {index} (process {os.getpid()})"
        self._pool = Pool(plan, device, self._name, ExampleMemory(numerics.take_share(gpus)))
        self._held: dict[int, TreeFold[Any]] = {}
        self._rows: dict[int, dict[int, list[Tensor]]] = {}
        self._broadcasts: dict[int, Any] = {}

    def ready(self) -> Whereabouts:
        """Where this pool runs, once it can work."""
        return here(self._name)

    def work(
        self,
        job: int,
        num_units: int,
        kind: Kind,
        packed: Any,
        units: Sequence[tuple[int, Any]],
        hand_over: bool,
        bounds: tuple[Bounds, ...],
        apart: bool,
    ) -> Any:
        """Carry out (index, unit) pairs in order and hold their results; with `hand_over`, give out all that is held.

        `packed` is the job's broadcast, or None where a call before brought it; it is kept until the hand-over.

        Returns a `Worked`. A call that hands over may have more results, each an object of its own, which stays on this
        node until somebody asks for it: with `apart`, the sums; where the job keeps its updates, a shard of them for
        each of `bounds`, a mapping from unit to packed rows.
        """
        if packed is not None:
            self._broadcasts[job] = wire.unpack(packed)
        worked = self._carry_out(job, num_units, kind, units, bool(bounds))
        if not hand_over:
            return worked
        self._broadcasts.pop(job, None)
        sums: Packed = ()
        rows: dict[int, list[Tensor]] = {}
        if not worked.out_of_memory:
            tree = self._held.pop(job, None)
            sums = () if tree is None else tuple((node, wire.pack(value)) for node, value in tree.take())
            rows = self._rows.pop(job, {})
        shards = [{unit: wire.pack(part) for unit, part in shard.items()} for shard in sharded(rows, bounds)]
        if not apart and not shards:
            return replace(worked, sums=sums)
        if not apart:
            return replace(worked, sums=sums), *shards
        return replace(worked, parts=tuple(node for node, _ in sums)), sums, *shards

    def combine(self, num_units: int, kind: Kind, *handed: Packed) -> Packed:
        """Add up, as far as the tree allows, what workers of this node have handed over."""
        tree: TreeFold[Any] = TreeFold(num_units, COMBINE[kind])
        for sums in handed:
            for node, packed in sums:
                tree.put(wire.unpack(packed), node)
        return tuple((node, wire.pack(value)) for node, value in tree.take())

    def drop(self, job: int) -> None:
        """Let go of all that is held of a job: somebody else has done it."""
        for held in (self._held, self._rows, self._broadcasts):
            held.pop(job, None)

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
                for tree in self._held.values():
                    tree.change(on_host)
                torch.cuda.empty_cache()
                return Worked(tuple(done), out_of_memory=True)
            self._held.setdefault(job, TreeFold(num_units, COMBINE[kind])).put_leaf(value, index)
            if rows is not None:
                self._rows.setdefault(job, {})[index] = rows
            done.append((start_s, time.time()))
        return Worked(tuple(done))
