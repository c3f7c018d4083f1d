"""Carries out the commands of dispatch with Ray: sends calls, waits for replies, and keeps results and references."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import ray
from ray import exceptions

from raysim.cohort.tree import TreeFold
from raysim.engine import wire
from raysim.engine.job import COMBINE, Job, Outcome, Part, Shard, Stopped
from raysim.engine.on_ray.cluster import handles, own_ray
from raysim.engine.on_ray.cluster.cluster import Growth, Placement, actor_options, room_for
from raysim.engine.on_ray.cluster.connection import Connection
from raysim.engine.on_ray.cluster.data_on_nodes import SentPlan, SentRuns, send_plan
from raysim.engine.on_ray.cluster.remote_errors import cause_of, own_error, raise_again
from raysim.engine.on_ray.cluster.wait import Wait
from raysim.engine.on_ray.cluster.whereabouts import Whereabouts, line
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.client_pool import ClientPool, Order, Packed, PoolHandle, PoolReply, Reply
from raysim.engine.on_ray.executor.rules import change
from raysim.engine.on_ray.executor.table import Call, DispatchTable, Gather, JobFacts, JobState, Ping, Results, Work
from raysim.engine.plan.plan import Plan
from raysim.errors import RaysimError
from raysim.run_folder.timeline import Span

if TYPE_CHECKING:
    from ray import ObjectRef

    PoolCall = ObjectRef[Reply] | ObjectRef[Packed] | ObjectRef[Whereabouts]

log = logging.getLogger("raysim")

INLINE_BYTES = 64 << 10
"""A broadcast up to this size travels inside the first call to a worker: the object store would cost a millisecond."""

MANY_CALLS = 64
"""With more calls in flight, all replies that have arrived are counted together."""

POLL_S = 0.5
"""Interval at which a waiting driver checks for a request to stop and for late calls."""


class StartedPools(NamedTuple):
    """Workers that are starting.

    sent: a reference to the plan, or the runs, for workers that start later. actors: numbered from 0.
    """

    sent: ObjectRef[SentPlan | SentRuns]
    actors: tuple[PoolHandle, ...]


def start_pools(plan: Plan | SentRuns, placement: Placement) -> StartedPools:
    """Start the workers of a run, or of several. The calling process owns them: they end with it."""
    sent = ray.put(plan if isinstance(plan, SentRuns) else send_plan(plan, placement.wait_s))
    return StartedPools(sent, tuple(_actor(sent, number, placement) for number in range(placement.workers)))


def _actor(sent: ObjectRef[SentPlan | SentRuns], number: int, placement: Placement) -> PoolHandle:
    actor = ray.remote(ClientPool).options(**actor_options(placement))
    return cast(PoolHandle, actor.remote(sent, number, placement.gpus))


@dataclass
class InFlight:
    """The data of a job in flight that the table does not have.

    broadcast: packed, or a reference to it in the object store. inline: it travels inside the first call to a worker.
    put_s, fold_s: the driver's seconds for sending and for adding up. spans: times of the workers' units. down, up:
    bytes to a node, and from it. sums, shards: by call, references to the objects that it handed over, which stay on
    their node. The driver owns them as results of calls, so they outlive the worker, but not its node.
    """

    job: Job
    tree: TreeFold[object]
    broadcast: object
    num_bytes: int
    inline: bool
    put_s: float
    fold_s: float = 0.0
    spans: list[Span] = field(default_factory=list)
    down: Counter[str] = field(default_factory=Counter)
    up: Counter[str] = field(default_factory=Counter)
    sums: dict[int, ObjectRef[Packed]] = field(default_factory=dict)
    shards: dict[int, tuple[ObjectRef[Part], ...]] = field(default_factory=dict)

    def add(self, sums: Packed, node: str) -> None:
        """Add sums that arrived from a node."""
        start_s = time.perf_counter()
        for part, packed in sums:
            self.up[node] += wire.num_bytes(packed)
            self.tree.put(wire.unpack(packed), part)
        self.fold_s += time.perf_counter() - start_s

    def outcome(self, state: JobState, workers: int, nodes: Sequence[str]) -> Outcome:
        """The outcome of the whole job; `nodes` in their order."""
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
    """Executor over ClientPool actors pinned to `placement`; it is there with the first of them, the others join.

    Args:
        plan: the run; or the data of several runs, which jobs name (shared_on_ray.py).
        placement: number of workers, and the share of a node for each.
        started_pools: workers that another process has started, and owns; None starts them here.

    Setting `stop`, from any thread, makes a waiting `result` raise `Stopped`.
    """

    def __init__(self, plan: Plan | SentRuns, placement: Placement, started_pools: StartedPools | None = None) -> None:
        started_pools = started_pools or start_pools(plan, placement)
        self.connection = Connection()
        self._sent, self._started_pools, self._placement = started_pools.sent, list(started_pools.actors), placement
        self._growth = Growth(placement)
        self._table = DispatchTable((ray.get_runtime_context().get_node_id(),), time.monotonic())
        self._actors: dict[int, PoolHandle] = {}
        self._calls: dict[PoolCall, int] = {}
        """Calls in flight, by the reference to the reply."""
        self._jobs: dict[int, InFlight] = {}
        self._done: dict[int, Outcome | Exception] = {}
        self._tickets = itertools.count(1)
        self.stop = threading.Event()
        self.started: list[str] = []
        """The places of the workers that have started, in this order; it grows."""
        self._wait = Wait(placement.wait_s, partial(room_for, placement))
        self._on(events.CapacityAdded(placement.workers))
        self.wait_for(1)

    @property
    def workers(self) -> int:
        """Number of workers, of which some may have yet to start."""
        return len(self._table.workers)

    def resend(self, runs: SentRuns) -> None:
        """Send workers that start from now on these runs' data; those that have started keep what they have."""
        self._sent = ray.put(runs)

    def wait_for(self, workers: int) -> None:
        """Wait until so many workers have started."""
        try:
            while len(self.started) < workers:
                self._serve()
        except BaseException:
            self.close()
            raise

    def submit(self, job: Job) -> int:
        """Put the broadcast where every node can map it, and assign the workers their first units."""
        self.connection.check()
        starting = sum(not worker.node for worker in self._table.workers.values())
        self._on(events.CapacityAdded(self._growth.lacking(starting + self._table.num_given_up)))
        start_s = time.perf_counter()
        ticket, packed = next(self._tickets), wire.pack(job.broadcast)
        num_bytes = wire.num_bytes(packed)
        inline = num_bytes <= INLINE_BYTES
        broadcast, tree = packed if inline else ray.put(packed), TreeFold(len(job.units), COMBINE[job.kind])
        self._jobs[ticket] = InFlight(job, tree, broadcast, num_bytes, inline, time.perf_counter() - start_s)
        work = job.kind, job.runs[0] if job.runs else getattr(job.broadcast, "phase", 0)
        results: Results = "summed" if inline or job.runs else "gathered"
        facts = JobFacts(job.broadcast.round, work, job.costs, num_bytes, results, job.runs)
        self._on(events.Submitted(ticket, facts))
        self._on(events.RepliesRead())
        return ticket

    def result(self, ticket: int) -> Outcome:
        """Wait for the job, serving every other job meanwhile."""
        outcome = self._done.pop(self.first([ticket]))
        if isinstance(outcome, Exception):
            raise outcome from None
        return outcome

    def first(self, tickets: Collection[int]) -> int:
        """Wait until one of these jobs has ended; returns its ticket."""
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
        """End the pools without waiting for them."""
        self._calls.clear()
        for worker in list(self._actors):
            self._carry_out(events.End(worker))

    def _serve(self) -> None:
        """Wait for a reply, or for the polling interval, and carry out the commands that follow."""
        own_ray.check()
        # Between two reports of several runs the script has the word.
        self.connection.check()
        calls = list(self._calls)
        ready, _ = ray.wait(calls, num_returns=1, timeout=POLL_S)
        if len(calls) > MANY_CALLS:
            # Dispatch examines every worker: once for all replies.
            ready, _ = ray.wait(calls, num_returns=len(calls), timeout=0)
        self._count(ready)
        if not ready:
            self._on(events.Timeout())
            self._wait.check(time.monotonic() - self._table.last_alive_s, bool(self.started))
        self._on(events.RepliesRead())

    def _count(self, references: Iterable[PoolCall]) -> None:
        """Take the replies that have arrived."""
        for reference in references:
            number = self._calls.pop(reference, None)
            # None: the worker was ended meanwhile.
            if number is not None:
                self._on(*self._reply(number, reference))

    def _on(self, event: events.Event, reply: PoolReply | None = None) -> None:
        """Apply the rules to an event and carry out their commands; `reply`: the reply that caused it."""
        for command in change(self._table, event, time.monotonic()):
            self._carry_out(command, reply)

    def _reply(self, number: int, reference: PoolCall) -> tuple[events.Event, PoolReply | None]:
        """Translate the reply to a call, or its failure, into an event; returns it and the reply."""
        call = self._table.calls[number]
        if isinstance(call, Gather) and call.ticket not in self._jobs:
            return events.Gathered(number), None
        try:
            reply: PoolReply = ray.get(reference)
        except exceptions.RayActorError as error:
            if getattr(error, "actor_init_failed", False):
                raise
            return events.WorkerLost(number, "died"), None
        except (exceptions.RayTaskError, exceptions.ObjectLostError) as error:
            if isinstance(call, Gather):
                # A gather only reads objects on a node: one of them must be lost.
                return events.Gathered(number, lost=True), None
            # Check this class first, because Ray derives a RayTaskError from the class of its cause too.
            if not isinstance(error, exceptions.RayTaskError):
                return events.WorkerLost(number, "went with its node"), None
            if isinstance(call, Ping):
                raise_again(error)
            updates_lost = isinstance(cause_of(error), exceptions.ObjectLostError)
            return events.Failed(number, own_error(error) or error, updates_lost), None
        match reply:
            case Reply():
                unit_s = tuple(end_s - start_s for start_s, end_s in reply.done)
                handed = tuple(unit for part in reply.parts for unit in range(*part))
                return events.UnitsDone(number, unit_s, handed, reply.out_of_memory), reply
            case tuple():
                return events.Gathered(number), reply
        assert isinstance(call, Ping)
        if not self._table.workers[call.worker].node:
            self.started.append(line(reply, self._table.nodes))
        return events.Ready(number, reply.node), None

    def _carry_out(self, command: events.Command, reply: PoolReply | None = None) -> None:
        match command:
            case events.Send(number, call, broadcast):
                self._calls[self._send(number, call, broadcast)] = number
            case events.Drop(worker, key):
                self._actors[worker].drop.remote(key)
            case events.End(worker):
                actor = self._actors.pop(worker)
                # A control service that is gone would not answer; the workers end with the rest of Ray. So they do
                # with a connection that the script has ended.
                if own_ray.died() is None and self.connection.lives:
                    handles.kill(actor)
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

    def _send(self, number: int, call: Call, broadcast: bool) -> PoolCall:
        """Send a call; returns the reference to its reply."""
        if isinstance(call, Ping):
            if call.worker not in self._actors:
                new = (
                    self._started_pools.pop(0)
                    if self._started_pools
                    else _actor(self._sent, call.worker, self._placement)
                )
                self._actors[call.worker] = new
            return self._actors[call.worker].ready.remote()
        flight = self._jobs[call.ticket]
        job = flight.job
        if isinstance(call, Gather):
            handed = [flight.sums[one] for one in call.handed]
            if call.worker is None:
                return handed[0]
            return self._actors[call.worker].combine.remote(len(job.units), job.kind, *handed)
        actor, node = self._actors[call.worker], self._table.workers[call.worker].node
        if broadcast and (flight.inline or node not in flight.down):
            # Through the object store only the first worker of a node costs bytes.
            flight.down[node] += flight.num_bytes
        units = tuple((unit, job.units[unit]) for unit in call.units)
        order = Order(call.key, len(job.units), job.kind, units, call.hand_over, job.keep)
        packed = flight.broadcast if broadcast else None
        if not call.apart and not (call.hand_over and job.keep):
            return actor.work.remote(order, packed)
        method = actor.work_apart.options(num_returns=2 + len(job.keep))
        # As `work_apart` returns them.
        reference, sums, *shards = method.remote(order, packed, call.apart)
        flight.sums[number] = cast("ObjectRef[Packed]", sums)
        flight.shards[number] = tuple(cast("ObjectRef[Part]", shard) for shard in shards)
        return cast("ObjectRef[Reply]", reference)

    def _take(self, call: Work | Gather, node: str, reply: PoolReply | None) -> None:
        """Add the results and times of a reply that counts."""
        flight = self._jobs[call.ticket]
        if isinstance(call, Gather):
            assert isinstance(reply, tuple)
            flight.add(reply, node)
            return
        assert isinstance(reply, Reply)
        for unit, (start_s, end_s) in zip(call.units, reply.done, strict=False):
            flight.spans.append(Span(f"worker {call.worker}", f"{flight.job.kind} {unit}", start_s, end_s))
        flight.add(reply.sums, node)
