"""A job under way on Ray: what is given out, what lies on the nodes, and what has arrived."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from raysim.engine import wire
from raysim.engine.failure import Cause
from raysim.engine.job import Job, Outcome, Shard
from raysim.engine.on_ray.calls import WorkKind
from raysim.engine.schedule import Schedule
from raysim.fold import Node, TreeFold
from raysim.timeline import Span

S_PER_BYTE = 2e-9
"""What a sum costs to write, map, copy and add, in seconds a byte: the same kind of memory traffic everywhere."""


class NodeSums(NamedTuple):
    """Sums that a worker left on its node: which parts of the tree, and a reference to them."""

    parts: tuple[Node, ...]
    reference: Any


class Kept(NamedTuple):
    """The updates of units that are finished: a reference for each shard."""

    units: frozenset[int]
    shards: tuple[Any, ...]


@dataclass
class Running:
    """Bookkeeping of one job: it decides nothing.

    ticket: its number. broadcast: packed, or a reference to it in the object store. num_bytes: of the broadcast.
    inline: it travels inside the first call to a worker. put_s, fold_s: the driver's seconds for sending and for adding
    up. spans: what workers did when. retries: failures after which units ran again. done_cost, busy_s: of the units
    that are finished, the cost and the workers' seconds.
    """

    ticket: int
    job: Job
    schedule: Schedule
    tree: TreeFold[Any]
    broadcast: Any
    num_bytes: int
    inline: bool
    put_s: float
    fold_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    retries: int = 0
    failures: Counter[tuple[Cause, int]] = field(default_factory=Counter)
    """By cause and unit."""
    arrived: set[int] = field(default_factory=set)
    """Units whose sums are in the tree."""
    on_nodes: dict[str, list[NodeSums]] = field(default_factory=dict)
    """By node: sums that lie there until all of the node's are there."""
    kept: list[Kept] = field(default_factory=list)
    """As results of calls these references are the driver's own: they outlive the worker that made them, but not its
    node."""
    down: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    """Bytes that went to a node, and that came from it."""
    done_cost: float = 0.0
    busy_s: float = 0.0

    @property
    def s_per_cost(self) -> float | None:
        """Seconds of work that a unit of cost takes, as measured so far."""
        return self.busy_s / self.done_cost if self.done_cost else None

    def cost(self, units: Iterable[int]) -> float:
        """What the units cost together."""
        return sum(self.job.costs[unit] for unit in units)

    def least_to_take(self) -> float:
        """The cost that must be left in another worker's region before a free worker takes from it.

        Less than that takes no longer than sending and adding the two more records that it causes, of 12 bytes a number
        (float64 sums, float32 unit updates) where the model has 4.
        """
        sums_s = 2 * 3 * self.num_bytes * S_PER_BYTE
        return sums_s * self.done_cost / self.busy_s if self.busy_s else 0.0

    def count_sent(self, node: str) -> None:
        """The broadcast goes to a worker of the node: through the object store only the first one there costs."""
        if self.inline or node not in self.down:
            self.down[node] += self.num_bytes

    def count_done(self, worker: int, units: Sequence[int], when: Sequence[tuple[float, float]]) -> float:
        """Count what a worker has done; returns the seconds."""
        took = 0.0
        for unit, (start_s, end_s) in zip(units, when, strict=False):
            self.spans.append(Span(f"worker {worker}", f"{self.job.kind} {unit}", start_s, end_s))
            took += end_s - start_s
            self.done_cost += self.job.costs[unit]
        self.busy_s += took
        return took

    @property
    def work(self) -> WorkKind:
        """By which the time that its units take is remembered."""
        return self.job.kind, getattr(self.job.broadcast, "phase", 0)

    def lose(self, parts: Iterable[Node]) -> set[int]:
        """Let go of sums that went with their node, and of the updates they are of; returns their units."""
        units = units_of(parts)
        self.kept = [one for one in self.kept if not one.units & units]
        return units

    def add(self, sums: Iterable[tuple[Node, Any]], node: str) -> None:
        """Add sums that came from a node."""
        start_s = time.perf_counter()
        for part, packed in sums:
            # What came, not what was asked for: a unit that ran out of memory before the call is not in it.
            self.arrived.update(range(*part))
            self.up[node] += wire.num_bytes(packed)
            self.tree.put(wire.unpack(packed), part)
        self.fold_s += time.perf_counter() - start_s

    def outcome(self, workers: int, nodes: Sequence[str]) -> Outcome:
        """What the whole job came to; `nodes` in their order."""
        return Outcome(
            value=self.tree.value,
            spans=tuple(self.spans),
            workers=workers,
            put_s=self.put_s,
            fold_s=self.fold_s,
            retries=self.retries,
            bytes_down=tuple(self.down[node] for node in nodes),
            bytes_up=tuple(self.up[node] for node in nodes),
            kept=tuple(
                Shard(*bounds, tuple(one.shards[i] for one in self.kept)) for i, bounds in enumerate(self.job.keep)
            ),
        )


def units_of(parts: Iterable[Node]) -> set[int]:
    """The units under parts of the tree."""
    return {unit for part in parts for unit in range(*part)}
