"""Defines the events that the rules of dispatch receive, and the commands that they return."""

from __future__ import annotations

from typing import NamedTuple

from raysim.engine.on_ray.executor.table import Call, Gather, JobFacts, JobState, Key, Work


class CapacityAdded(NamedTuple):
    """The cluster has room for this number of further workers."""

    workers: int


class Submitted(NamedTuple):
    """A job was submitted."""

    ticket: int
    facts: JobFacts


class Ready(NamedTuple):
    """A worker has started, on this node."""

    call: int
    node: str


class UnitsDone(NamedTuple):
    """A worker replied. unit_s: seconds of each completed unit, in order. handed: units whose results it handed over.
    If memory ran out, it completed only the first units of the call, and handed over nothing."""

    call: int
    unit_s: tuple[float, ...]
    handed: tuple[int, ...]
    out_of_memory: bool


class Gathered(NamedTuple):
    """Results arrived from a node, or were lost with it."""

    call: int
    lost: bool = False


class WorkerLost(NamedTuple):
    """A call ended without a reply; how: the rest of a message that begins with "worker 3"."""

    call: int
    how: str


class Failed(NamedTuple):
    """Units raised an error. updates_lost: kept updates that the job needs were lost with their node."""

    call: int
    error: Exception
    updates_lost: bool


class Timeout(NamedTuple):
    """No reply arrived within the polling interval."""


class RepliesRead(NamedTuple):
    """All replies that had arrived are counted: units may be assigned."""


Event = CapacityAdded | Submitted | Ready | UnitsDone | Gathered | WorkerLost | Failed | Timeout | RepliesRead


class Send(NamedTuple):
    """Send a call, with the job's broadcast if `broadcast` is true. A worker's first call starts it."""

    number: int
    call: Call
    broadcast: bool


class Drop(NamedTuple):
    """Make a worker release its results and its broadcast under a key."""

    worker: int
    key: Key


class End(NamedTuple):
    """End a worker. It may only be unreachable; once it has ended, none of its results can be counted twice."""

    worker: int


class Count(NamedTuple):
    """The reply to this call counts: add the results that it brought from a node."""

    call: Work | Gather
    node: str


class FinishJob(NamedTuple):
    """All results of the job have arrived. workers: number of available workers."""

    job: JobState
    workers: int


class Warn(NamedTuple):
    """Log a warning."""

    text: str


class Raise(NamedTuple):
    """Raise this error to the caller that waits for the job; ticket None: to a caller that waits for any job."""

    error: Exception
    ticket: int | None


Command = Send | Drop | End | Count | FinishJob | Warn | Raise
