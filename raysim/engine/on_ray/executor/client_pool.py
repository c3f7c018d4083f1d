"""Defines ClientPool, the Ray actor around the pool of a run or the host of several; it adds up results."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

import ray
import torch
from torch import Tensor

from raysim import card
from raysim.cohort.tree import Node, TreeFold
from raysim.config import torch_settings
from raysim.engine import numerics, wire
from raysim.engine.job import COMBINE, JobBroadcast, Kind, Shard, on_host
from raysim.engine.many.segment import Host
from raysim.engine.on_ray.cluster.data_on_nodes import SentPlan, SentRuns, receive, receive_plan
from raysim.engine.on_ray.cluster.handles import ApartMethod, RemoteMethod
from raysim.engine.on_ray.cluster.whereabouts import Whereabouts, here
from raysim.engine.on_ray.executor.table import Key
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.pool import Pool
from raysim.engine.worker.shard_work import cut_into_shards
from raysim.errors import RaysimError
from raysim.models import memory
from raysim.server.aggregators.updates import Bounds

if TYPE_CHECKING:
    from ray import ObjectRef

Packed = tuple[tuple[Node, object], ...]
"""Parts of the tree with their packed sums."""


@dataclass(frozen=True)
class Order:
    """The argument of a call: units by index, of a job of `num_units`.

    hand_over: then hand over all results held under the key. keep: bounds of the shards of kept updates.
    """

    key: Key
    num_units: int
    kind: Kind
    units: tuple[tuple[int, object], ...]
    hand_over: bool
    keep: tuple[Bounds, ...]


@dataclass(frozen=True)
class Reply:
    """The result of a call.

    done: start and end of each completed unit, by the Unix clock; shorter than the order's units if memory ran out.
    parts: if the order hands over, the maximal subtrees of the units completed since the last hand-over. sums: a packed
    record for each part, if the sums travel with the reply.
    """

    done: tuple[tuple[float, float], ...]
    parts: tuple[Node, ...] = ()
    sums: Packed = ()
    out_of_memory: bool = False


PoolReply = Reply | Packed | Whereabouts
"""What the calls of a pool return: units, combined sums, and the start."""


class CombineMethod(Protocol):
    """`ClientPool.combine`, of references to what was handed over."""

    def remote(self, num_units: int, kind: Kind, *handed: ObjectRef[Packed]) -> ObjectRef[Packed]:
        """Call it, without waiting."""
        ...


class PoolHandle(Protocol):
    """The actor of a `ClientPool`."""

    @property
    def ready(self) -> RemoteMethod[[], Whereabouts]:
        """See `ClientPool`."""
        ...

    @property
    def work(self) -> RemoteMethod[[Order, object], Reply]:
        """See `ClientPool`."""
        ...

    @property
    def work_apart(self) -> ApartMethod[[Order, object, bool]]:
        """See `ClientPool`."""
        ...

    @property
    def combine(self) -> CombineMethod:
        """See `ClientPool`."""
        ...

    @property
    def drop(self) -> RemoteMethod[[Key], None]:
        """See `ClientPool`."""
        ...


class ClientPool:
    """Carries out calls in order; folds a job's results as far as the tree allows, and holds them until the hand-over.

    Args:
        sent: the run, or several; data that this node lacks are fetched.
        index: the worker's number, for messages.
        gpus: the share of a card that Ray assigned; it caps this process's share of the card's memory.
    """

    def __init__(self, sent: SentPlan | SentRuns, index: int, gpus: float) -> None:
        memory.keep_freed()
        self._name = f"worker {index} (process {os.getpid()})"
        self._refusal: RaysimError | None = None
        try:
            self._run = _host(sent, self._name, gpus) if isinstance(sent, SentRuns) else _pool(sent, self._name, gpus)
        except RaysimError as error:
            # `ready` raises it: of an actor that fails to start, the driver learns only a text of Ray's.
            self._refusal = error
        self._held: dict[Key, TreeFold[object]] = {}
        self._rows: dict[Key, dict[int, list[Tensor]]] = {}
        self._broadcasts: dict[Key, JobBroadcast] = {}

    def ready(self) -> Whereabouts:
        """Return where this pool runs; the reply means that it can work.

        Raises:
            RaysimError: it cannot, which its start has found.
        """
        if self._refusal is not None:
            raise self._refusal
        return here(self._name)

    def work(self, order: Order, packed: object) -> Reply:
        """Carry out units in order and hold their results, or hand them over with the reply.

        `packed` is the job's broadcast, or None if an earlier call brought it; the pool keeps it until the hand-over.
        """
        reply = self._carry_out(order, packed)
        sums = self._handed_over(order, reply)
        return replace(reply, parts=tuple(node for node, _ in sums), sums=sums)

    def work_apart(self, order: Order, packed: object, apart: bool) -> tuple[object, ...]:
        """Do `work`, but hand over separate objects of Ray, which stay on this node until a process gets them.

        Returns reply, sums, and a shard of the updates for each of `order.keep`: a mapping from unit to packed rows.
        Without `apart` the sums travel with the reply.
        """
        reply = self._carry_out(order, packed)
        rows = {} if reply.out_of_memory else self._rows.pop(order.key, {})
        sums = self._handed_over(order, reply)
        shards = [
            {unit: wire.pack(part) for unit, part in shard.items()} for shard in cut_into_shards(rows, order.keep)
        ]
        reply = replace(reply, parts=tuple(node for node, _ in sums), sums=() if apart else sums)
        return reply, sums if apart else (), *shards

    def combine(self, num_units: int, kind: Kind, *handed: Packed) -> Packed:
        """Add up, as far as the tree allows, the sums that workers of this node have handed over."""
        tree: TreeFold[object] = TreeFold(num_units, COMBINE[kind])
        for sums in handed:
            for node, packed in sums:
                tree.put(wire.unpack(packed), node)
        return _packed(tree)

    def drop(self, key: Key) -> None:
        """Release everything under a key: another worker has done the work."""
        for held in (self._held, self._rows, self._broadcasts):
            held.pop(key, None)

    def _handed_over(self, order: Order, reply: Reply) -> Packed:
        """Take the sums under the order's key out of the held ones, if the order hands over."""
        if order.hand_over:
            self._broadcasts.pop(order.key, None)
        if not order.hand_over or reply.out_of_memory or order.key not in self._held:
            return ()
        return _packed(self._held.pop(order.key))

    def _carry_out(self, order: Order, packed: object) -> Reply:
        key = order.key
        if packed is not None:
            self._broadcasts[key] = wire.unpack(packed)
        done: list[tuple[float, float]] = []
        for index, unit in order.units:
            start_s = time.time()
            if isinstance(unit, Shard):
                # The updates are in the object store: this node maps the shard, copies it once, and releases it.
                sent = [cast("ObjectRef[Mapping[int, object]]", part) for part in unit.parts]
                parts = [{i: wire.unpack(rows) for i, rows in part.items()} for part in ray.get(sent)]
                unit = replace(unit, parts=tuple(parts))
            rows: list[Tensor] | None = [] if order.keep else None
            try:
                value = self._run(order.kind, self._broadcasts[key], index, unit, rows)
            except torch.OutOfMemoryError:
                for tree in self._held.values():
                    tree.change(on_host)
                card.release_memory()
                return Reply(tuple(done), out_of_memory=True)
            self._held.setdefault(key, TreeFold(order.num_units, COMBINE[order.kind])).put_leaf(value, index)
            if rows is not None:
                self._rows.setdefault(key, {})[index] = rows
            done.append((start_s, time.time()))
        return Reply(tuple(done))


Run = Callable[[Kind, JobBroadcast, int, object, list[Tensor] | None], object]
"""Carries out a unit; see `Pool.run`."""


def _pool(sent: SentPlan, name: str, gpus: float) -> Run:
    plan, device = receive_plan(sent), numerics.choose_device(gpus)
    # The modules of its parts are imported now.
    torch_settings.renew()
    numerics.fix(plan.experiment.engine.threads, device, plan.experiment.engine.precision)
    return Pool(plan, device, name, ExampleMemory(numerics.take_share(gpus))).run


def _host(sent: SentRuns, name: str, gpus: float) -> Run:
    logging.getLogger("raysim").setLevel(sent.log_level)
    for dataset in sent.datasets:
        # Now: later, a call that takes this long would look like a hanging worker.
        receive(dataset)
    host = Host(name, numerics.take_share(gpus))
    return host.run


def _packed(tree: TreeFold[object]) -> Packed:
    return tuple((node, wire.pack(value)) for node, value in tree.take())
