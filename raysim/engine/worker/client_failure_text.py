"""Describes where user code failed, or gave something else again: the round and the unit, with the traceback."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.client.local_training import ClientFailure
from raysim.client.section import ClientSection
from raysim.client.trainers.compared_trainer import Differs
from raysim.config.user_call import there_is, trace
from raysim.engine.job import DOING, UNITS, Kind
from raysim.engine.plan import own_parts
from raysim.engine.plan.plan import Plan

BATCH_OF_ONE = "Expected more than 1 value per channel when training"
"""torch's words."""

MOST_NAMED = 3
"""Of a unit's clients."""


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


def gave_otherwise(
    plan: Plan, kind: Kind, split: str, positions: Sequence[int], at: str, count: int, cause: BaseException | None
) -> str:
    """Return the message of a difference between the first time that a worker carried out a unit and another time.

    Args:
        plan: the run.
        kind: of the job.
        split: of the clients.
        positions: of the unit's clients, at least one.
        at: the first time; see `place`.
        count: units of the worker before the other time.
        cause: what was raised the other time, if it failed.
    """
    again = "gave other numbers" if cause is None else f"failed, as it had not the first time ({cause!r})"
    if parts := own_parts.titles(plan):
        why = (
            f"Most often a part keeps something from call to call, such as a counter in an attribute, a class or a "
            f"global variable; this run has {', '.join(parts)}. Compute what a part returns from its arguments alone "
            f"(an objective= has the round as at.round), and start afresh."
        )
    else:
        why = "The run names no part of a script or a package: raysim or the machine may be at fault, please report it."
    lines = "" if cause is None else f"\n{trace(cause)}"
    clients = plan.dataset.split(split)
    named = ", ".join(repr(clients.id_of(position)) for position in positions[:MOST_NAMED])
    more = f" and {len(positions) - MOST_NAMED:,} more" if len(positions) > MOST_NAMED else ""
    whose = "client" if len(positions) == 1 else "clients"
    return (
        f"{DOING[kind]} the same {whose} again ({named}{more}) {again}. The first time was {at}, the second after "
        f"{count} {UNITS[kind]}s. So the run's numbers depend on what its workers did before, and a resumed run or "
        f"another number of workers would give others. {why}{lines}"
    )


def steps_otherwise(plan: Plan, found: Differs, at: str) -> str:
    """Return the message of a local step that is not autograd's.

    Args:
        plan: the run.
        found: whose, and how it differs.
        at: where the client was trained; see `place`.
    """
    if parts := own_parts.titles(plan):
        because = (
            f": this run has {', '.join(parts)}. A part may read values where torch does not see it, keep something "
            f"from call to call, or have been given other code meanwhile"
        )
        report = " If no part of yours does so, please report it."
    else:
        because, report = "", " The run names no part of a script or a package: please report it."
    return (
        f"A local step of client {plan.dataset.train.id_of(found.position)!r} is not autograd's, in {at}: "
        f"engine.trainer = {plan.choice.trainer!r} {found.how}. So the run's numbers are not those of its model"
        f'{because}. Set engine.trainer = "one_by_one", whose steps are autograd\'s, and start afresh.{report}'
    )


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
