"""Describes where user code failed: the client, the round and the unit, with the traceback."""

from __future__ import annotations

from raysim.client.local_training import ClientFailure
from raysim.client.section import ClientSection
from raysim.config.user_call import there_is, trace
from raysim.engine.job import DOING, UNITS, Kind
from raysim.engine.plan.plan import Plan

BATCH_OF_ONE = "Expected more than 1 value per channel when training"
"""torch's words."""


def described(plan: Plan, kind: Kind, failure: ClientFailure, at: str, split: str) -> str:
    """Return the message of a failure.

    Args:
        plan: the run.
        kind: of the job.
        failure: of a client of `split`.
        at: the round, the unit and the worker; see `place`.
    """
    doing, clients = DOING[kind], plan.dataset.split(split)
    cause = failure.__cause__
    raised = f"{cause!r}{there_is(cause)}" if cause else repr(cause)
    lines = trace(cause) if cause else ""
    others = f" or one of {failure.others} others that were with it" if failure.others else ""
    advice = _advice(plan.experiment.client) if BATCH_OF_ONE in str(cause) else ""
    return f"{doing} client {clients.id_of(failure.position)!r}{others} failed in {at}: {raised}{advice}\n{lines}"


def place(kind: Kind, round_index: int, index: int, worker: str) -> str:
    """Return where a unit is carried out, in words."""
    return f"round {round_index}, {UNITS[kind]} {index}, on {worker}"


def _advice(section: ClientSection) -> str:
    why = ". BatchNorm has no statistics of a batch of one"
    if section.batch_size == 1:
        return f"{why}: client.batch_size must be 2 or more"
    if section.drop_last:
        return f"{why}, and client.drop_last = true keeps the only batch of a client with one example: leave it out"
    return (
        f"{why}, such as an epoch's last: client.fill_last_batch = true tops it up, client.drop_last = true leaves it "
        f"out"
    )
