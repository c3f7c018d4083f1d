"""Talks to Ray for the rules of dispatch: sends calls, waits for replies, and keeps what the table only names."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray import exceptions

from raysim.cohort.tree import TreeFold
from raysim.engine import wire
from raysim.engine.job import COMBINE, Job, Outcome, Shard, Stopped
from raysim.engine.on_ray.cluster.cluster import (
    WAIT_FOR_RESOURCES_S,
    Growth,
    Placement,
    actor_options,
    no_worker,
    wait_for_pools,
)
from raysim.engine.on_ray.cluster.data_on_nodes import SentRuns, send_plan
from raysim.engine.on_ray.cluster.raised import cause_of, own_error, raise_again
from raysim.engine.on_ray.cluster.whereabouts import listed
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.client_pool import ClientPool, Order, Packed, Reply
from raysim.engine.on_ray.executor.rules import change
from raysim.engine.on_ray.executor.table import Call, DispatchTable, Facts, Gather, JobState, Results, Start, Work
from raysim.engine.plan.plan import Plan
from raysim.errors import RaysimError, ResourceError
from raysim.run_folder.timeline import Span

log = logging.getLogger("raysim")

INLINE_BYTES = 64 << 10
"""A broadcast up to this size travels inside the first call to a worker: the object store would cost a millisecond."""

MANY_CALLS = 64
"""With more in flight, all replies that are there are counted together."""

POLL_S = 0.5
"""How often a waiting driver looks up: whether it was asked to stop, whether a call is late."""


class Begun(NamedTuple):
    """Workers that are starting.

    sent: a reference to what each of them is told, for those to come. actors: numbered from 0.
    """

    sent: Any
    actors: tuple[Any, ...]


def begin(plan: Plan | SentRuns, placement: Placement) -> Begun:
    """Start the workers of a run, or of several. Who calls this owns them: they end with that process."""
    sent = ray.put(plan if isinstance(plan, SentRuns) else send_plan(plan))
    return Begun(sent, tuple(_actor(sent, number, placement) for number in range(placement.workers)))


def _actor(sent: Any, number: int, placement: Placement) -> Any:
    return ray.remote(ClientPool).options(**actor_options(placement)).remote(sent, number, placement.gpus)


@dataclass
class InFlight:
    """What a job in flight needs beside its place in the table.

    broadcast: packed, or a reference to it in the object store. inline: it travels inside the first call to a worker.
    put_s, fold_s: the driver's seconds for sending and for adding up. spans: what workers did when. down, up: bytes
    that went to a node, and that came from it. sums, shards: by call, references to what it handed over, which stays
    where it is; as results of calls they are the driver's own, and outlive the worker, but not its node.
    """

    job: Job
    tree: TreeFold[Any]
    broadcast: Any
    num_bytes: int
    inline: bool
    put_s: float
    fold_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    down: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    sums: dict[int, Any] = field(default_factory=dict)
    shards: dict[int, tuple[Any, ...]] = field(default_factory=dict)

    def add(self, sums: Packed, node: str) -> None:
        """Add sums that came from a node."""
        start_s = time.perf_counter()
        for part, packed in sums:
            self.up[node] += wire.num_bytes(packed)
            self.tree.put(wire.unpack(packed), part)
        self.fold_s += time.perf_counter() - start_s

    def outcome(self, state: JobState, workers: int, nodes: Sequence[str]) -> Outcome:
        """What the whole job came to; `nodes` in their order."""
        counted = sorted({unit.call for unit in state.units.values()})
        kept = [self.shards[call] for call in counted if call in self.shards]
        return Outcome(
            value=self.tree.value,
            spans=tuple(self.spans),
            workers=workers,
            put_s=self.put_s,
            fold_s=self.fold_s,
            retries=state.retries,
            bytes_down=tuple(self.down[node] for node in nodes),
            bytes_up=tuple(self.up[node] for node in nodes),
            kept=tuple(Shard(*b, tuple(shards[i] for shards in kept)) for i, b in enumerate(self.job.keep)),
        )


class OnRay:
    """Executor over ClientPool actors pinned to `placement`.

    Args:
        plan: the run; or what workers are told of several, which jobs name (shared.py).
        placement: how many workers, and each one's share of a node.
        begun: workers that somebody else has started, and owns; None starts them here.

    Setting `stop`, from any thread, makes a waiting `result` raise `Stopped`.
    """

    def __init__(self, plan: Plan | SentRuns, placement: Placement, begun: Begun | None = None) -> None:
        begun = begun or begin(plan, placement)
        self._told, self._begun, self._placement = begun.sent, list(begun.actors), placement
        self._growth = Growth(placement)
        self._table = DispatchTable((ray.get_runtime_context().get_node_id(),), time.monotonic())
        self._actors: dict[int, Any] = {}
        self._calls: dict[Any, int] = {}
        """Calls in flight by the reference that each one's reply will have."""
        self._jobs: dict[int, InFlight] = {}
        self._done: dict[int, Outcome | Exception] = {}
        self._tickets = itertools.count(1)
        self.stop = threading.Event()
        self._on(events.Room(placement.workers))
        starting = list(self._calls)
        try:
            places = wait_for_pools(starting, placement)
        except BaseException:
            self.close()
            raise
        self._count(starting)
        self.started = listed(places, self._table.nodes)

    def submit(self, job: Job) -> int:
        """Put the broadcast where every node can map it, and give the workers their first units."""
        self._on(events.Room(self._growth.lacking(sum(not worker.node for worker in self._table.workers.values()))))
        start_s = time.perf_counter()
        ticket, packed = next(self._tickets), wire.pack(job.broadcast)
        num_bytes = wire.num_bytes(packed)
        inline = num_bytes <= INLINE_BYTES
        broadcast, tree = packed if inline else ray.put(packed), TreeFold(len(job.units), COMBINE[job.kind])
        self._jobs[ticket] = InFlight(job, tree, broadcast, num_bytes, inline, time.perf_counter() - start_s)
        work = job.kind, job.runs[0] if job.runs else getattr(job.broadcast, "phase", 0)
        results: Results = "summed" if inline or job.runs else "gathered"
        facts = Facts(job.broadcast.round, work, job.costs, num_bytes, results, job.runs)
        self._on(events.Submitted(ticket, facts))
        self._on(events.Heard())
        return ticket

    def result(self, ticket: int) -> Outcome:
        """Wait for the job, serving every other job meanwhile."""
        outcome = self._done.pop(self.first([ticket]))
        if isinstance(outcome, Exception):
            raise outcome from None
        return outcome

    def first(self, tickets: Collection[int]) -> int:
        """Wait until one of these jobs has come to its end; returns its ticket."""
        while not (ended := self._done.keys() & tickets):
            if self.stop.is_set():
                raise Stopped
            try:
                self._serve()
            except (RaysimError, exceptions.RayError):
                self.close()
                raise
        return min(ended)

    def close(self) -> None:
        """End the pools, and wait for none."""
        self._calls.clear()
        for worker in list(self._actors):
            self._carry_out(events.End(worker))

    def _serve(self) -> None:
        """Wait for a reply, or a moment, and do what follows."""
        calls = list(self._calls)
        ready, _ = ray.wait(calls, num_returns=1, timeout=POLL_S)
        if len(calls) > MANY_CALLS:
            # Giving out looks at every worker: once for all that have replied.
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        self._count(ready)
        if not ready:
            self._on(events.Quiet())
            if time.monotonic() - self._table.seen_s > WAIT_FOR_RESOURCES_S:
                raise ResourceError(no_worker())
        self._on(events.Heard())

    def _count(self, references: Iterable[Any]) -> None:
        """Take the replies that are there."""
        for reference in references:
            number = self._calls.pop(reference, None)
            # None: of a worker that was ended meanwhile.
            if number is not None:
                self._on(*self._reply(number, reference))

    def _on(self, event: events.Event, reply: Any = None) -> None:
        """Have an event followed by what follows from it; `reply`: what came with it."""
        for command in change(self._table, event, time.monotonic()):
            self._carry_out(command, reply)

    def _reply(self, number: int, reference: Any) -> tuple[events.Event, Any]:
        """What the reply to a call, or its failure, means; and what came with it."""
        call = self._table.calls[number]
        if isinstance(call, Gather) and call.ticket not in self._jobs:
            return events.Gathered(number), None
        try:
            reply = ray.get(reference)
        except exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise
            return events.WorkerLost(number, "died"), None
        except (exceptions.RayTaskError, exceptions.ObjectLostError) as error:
            if isinstance(call, Gather):
                # What lies on nodes is only read: it must be gone.
                return events.Gathered(number, lost=True), None
            # This first, because Ray makes it of the class of its cause as well.
            if not isinstance(error, exceptions.RayTaskError):
                return events.WorkerLost(number, "went with its node"), None
            if isinstance(call, Start):
                raise_again(error)
            updates_lost = isinstance(cause_of(error), exceptions.ObjectLostError)
            return events.Failed(number, own_error(error) or error, updates_lost), None
        match reply:
            case Reply():
                seconds = tuple(end_s - start_s for start_s, end_s in reply.done)
                handed = tuple(unit for part in reply.parts for unit in range(*part))
                return events.Worked(number, seconds, handed, reply.out_of_memory), reply
            case tuple():
                return events.Gathered(number), reply
        return events.Ready(number, reply.node), None

    def _carry_out(self, command: events.Command, reply: Any = None) -> None:
        match command:
            case events.Send(number, call, broadcast):
                self._calls[self._sent(number, call, broadcast)] = number
            case events.Drop(worker, key):
                self._actors[worker].drop.remote(key)
            case events.End(worker):
                ray.kill(self._actors.pop(worker))
                self._calls = {reference: n for reference, n in self._calls.items() if n in self._table.calls}
            case events.Count(call, node):
                self._take(call, node, reply)
            case events.FinishJob(state, workers):
                self._done[state.ticket] = self._jobs.pop(state.ticket).outcome(state, workers, self._table.nodes)
            case events.Warn(text):
                log.warning(text)
            case events.Raise(error, ticket):
                if ticket is None:
                    raise error from None
                del self._jobs[ticket]
                self._done[ticket] = error

    def _sent(self, number: int, call: Call, broadcast: bool) -> Any:
        """Send a call; returns the reference that its reply will have."""
        if isinstance(call, Start):
            if call.worker not in self._actors:
                new = self._begun.pop(0) if self._begun else _actor(self._told, call.worker, self._placement)
                self._actors[call.worker] = new
            return self._actors[call.worker].ready.remote()
        flight = self._jobs[call.ticket]
        job = flight.job
        if isinstance(call, Gather):
            sums = [flight.sums[one] for one in call.handed]
            if call.worker is None:
                return sums[0]
            return self._actors[call.worker].combine.remote(len(job.units), job.kind, *sums)
        actor, node = self._actors[call.worker], self._table.workers[call.worker].node
        if broadcast and (flight.inline or node not in flight.down):
            # Through the object store only the first one on a node costs.
            flight.down[node] += flight.num_bytes
        units = tuple((unit, job.units[unit]) for unit in call.units)
        order = Order(call.key, len(job.units), job.kind, units, call.hand_over, job.keep)
        packed = flight.broadcast if broadcast else None
        if not call.apart and not (call.hand_over and job.keep):
            return actor.work.remote(order, packed)
        method = actor.work_apart.options(num_returns=2 + len(job.keep))
        reference, sums, *shards = method.remote(order, packed, call.apart)
        flight.sums[number], flight.shards[number] = sums, tuple(shards)
        return reference

    def _take(self, call: Work | Gather, node: str, reply: Any) -> None:
        """Take what came with a reply that counts."""
        flight = self._jobs[call.ticket]
        if isinstance(call, Gather):
            flight.add(reply, node)
            return
        for unit, (start_s, end_s) in zip(call.units, reply.done, strict=False):
            flight.spans.append(Span(f"worker {call.worker}", f"{flight.job.kind} {unit}", start_s, end_s))
        flight.add(reply.sums, node)
