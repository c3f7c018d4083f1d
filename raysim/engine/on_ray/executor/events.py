"""Names what the rules of dispatch hear of (events), and what they have done about it (commands)."""

from __future__ import annotations

from typing import NamedTuple

from raysim.engine.on_ray.executor.table import Call, Facts, Gather, JobState, Key, Work


class Room(NamedTuple):
    """There is room for so many more workers."""

    workers: int


class Submitted(NamedTuple):
    """A job came."""

    ticket: int
    facts: Facts


class Ready(NamedTuple):
    """A worker replied that it is there, and on which node."""

    call: int
    node: str


class Worked(NamedTuple):
    """A worker replied. seconds: of each unit that it carried out, in order. handed: units whose results it handed
    over. Where memory ran out, it carried out fewer units than it was asked for, and handed over nothing."""

    call: int
    seconds: tuple[float, ...]
    handed: tuple[int, ...]
    out_of_memory: bool


class Gathered(NamedTuple):
    """Results came from a node, or were lost with it."""

    call: int
    lost: bool = False


class WorkerLost(NamedTuple):
    """A call ended without a reply; how: goes on after "worker 3 ..."."""

    call: int
    how: str


class Failed(NamedTuple):
    """Units raised an error. updates_lost: of the updates that the job is to look at, some went with their node."""

    call: int
    error: Exception
    updates_lost: bool


class Quiet(NamedTuple):
    """Nobody replied for a moment."""


class Heard(NamedTuple):
    """All replies that were there have been counted: work may be given out."""


Event = Room | Submitted | Ready | Worked | Gathered | WorkerLost | Failed | Quiet | Heard


class Send(NamedTuple):
    """Send a call; with `broadcast`, the job's broadcast goes with it. A worker's first call starts it."""

    number: int
    call: Call
    broadcast: bool


class Drop(NamedTuple):
    """Have a worker let go of what it has under a key."""

    worker: int
    key: Key


class End(NamedTuple):
    """End a worker. It may only be out of reach: ended for certain, nothing of it can be counted twice."""

    worker: int


class Count(NamedTuple):
    """The reply to this call counts: take what came with it, from a node."""

    call: Work | Gather
    node: str


class FinishJob(NamedTuple):
    """All results of the job have arrived. workers: how many could work."""

    job: JobState
    workers: int


class Warn(NamedTuple):
    """Say it in the log."""

    text: str


class Raise(NamedTuple):
    """Whoever waits for the job is to get this error; ticket: None is whoever waits for any job."""

    error: Exception
    ticket: int | None


Command = Send | Drop | End | Count | FinishJob | Warn | Raise
