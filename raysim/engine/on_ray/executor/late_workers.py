"""Has an idle worker carry out a late worker's units too. The first of the two to reply counts."""

from __future__ import annotations

from collections.abc import Iterable

from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.assigning import assign
from raysim.engine.on_ray.executor.job_end import cancel, cancel_copies, release
from raysim.engine.on_ray.executor.table import JobState, Work
from raysim.engine.on_ray.executor.turn import Turn

SLOW, SLOW_S = 3.0, 5.0
"""A call is slow after SLOW times its expected time, and SLOW_S seconds. A free worker then carries it out too."""

HUNG, HUNG_S = 20.0, 60.0
"""A call hangs after HUNG times its expected time, and HUNG_S seconds. Its worker is then ended."""


def is_slow(running_s: float, expected_s: float | None) -> bool:
    """Whether units with the expected time `expected_s` (None: not measured) should be carried out twice."""
    return expected_s is not None and running_s > max(SLOW_S, SLOW * expected_s)


def is_hung(running_s: float, expected_s: float | None) -> bool:
    """Whether a call with the expected time `expected_s` counts as one that will never end."""
    return expected_s is not None and running_s > max(HUNG_S, HUNG * expected_s)


def race(turn: Turn, job: JobState, late: int) -> None:
    """Assign all units that a late worker has of a job to an idle worker too, if there is one."""
    units = job.units_of(late)
    idle = turn.table.by_node(worker for worker, load in turn.table.available().items() if worker != late and not load)
    # Two loops on one segment would delete each other's files of client states.
    if job.facts.runs or not units or not idle or late in job.raced:
        return
    job.raced |= {late}
    # Any worker may take the late worker's waiting units.
    job.schedule.open_region(late, ())
    what = f"worker {late} is late with {job.facts.several(len(units))}; worker {idle[0]} does them too"
    turn.commands.append(events.Warn(what))
    assign(turn, idle[0], job, tuple(sorted(units)), hand_over=True, late_worker=late)


def accept_copy(turn: Turn, job: JobState, call: Work, handed: Iterable[int]) -> None:
    """Use the results of a worker that carried out a late worker's units first; cancel the late worker's calls."""
    late = call.late_worker
    assert late is not None
    turn.commands.append(events.Warn(f"worker {call.worker} was first with what worker {late} is late with"))
    job.raced -= {late}
    # Further units may have been assigned to the late worker since.
    others = job.units_of(late) - set(handed)
    cancel(turn, late, job)
    release(job, late, others)


def end_race(turn: Turn, job: JobState, late: int) -> None:
    """Cancel the copies of a late worker's units: the worker has replied itself, or is lost."""
    if late in job.raced:
        job.raced -= {late}
        cancel_copies(turn, job, late)
