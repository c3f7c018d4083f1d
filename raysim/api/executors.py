"""Carries out a run in this process, on Ray, or here at first and on Ray once workers are worth their start."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import Literal, NamedTuple

from raysim.api.preflight import ExecutorName, check_here
from raysim.engine import numerics
from raysim.engine.in_process import InProcess
from raysim.engine.on_ray.cluster import forked, warm_workers
from raysim.engine.outlook import Outlook, workers_here
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds import loop
from raysim.engine.rounds.finished_round import Finished
from raysim.engine.rounds.opening import Opening, open_folder, owner_of
from raysim.engine.rounds.run_status import Watcher, run_name
from raysim.engine.rounds.state_files import with_states_folder
from raysim.errors import ExperimentError
from raysim.experiment import stopping
from raysim.experiment.experiment import EngineSection, Experiment
from raysim.experiment.stopping import Seen
from raysim.models.model import Weights
from raysim.run_folder.writer import RunFolder
from raysim.server.state import ServerState

log = logging.getLogger("raysim")

Begins = Literal["here", "here at first", "on Ray"]
"""Where a run begins."""

PLACES = {"here": "this process", "here at first": "this process, until workers are worth their start"}


def begins(engine: EngineSection, executor: ExecutorName | None, address: str | None) -> Begins:
    """Return where a run begins: here at first, if nothing but "auto" says how many workers it has.

    Raises:
        ExperimentError: an address, for a run in this process.
        ResourceError: a card that this process does not have.
    """
    if engine.workers == 0:
        check_here(engine, address)
        return "here"
    asked = engine.workers != "auto" or executor == "ray" or address is not None
    # Ray says where it has no card; here the run would train without one.
    asked |= engine.gpus_per_worker not in (0, "auto")
    if asked or _is_connected():
        return "on Ray"
    return "here at first" if numerics.choose_device(engine.gpus_per_worker).type == "cpu" else "on Ray"


def ahead(engine: EngineSection, executor: ExecutorName | None, address: str | None) -> AbstractContextManager[object]:
    """Begin to load what workers need, where a run will begin on a Ray of its own, while it is checked in the block."""
    is_own = address is None and not _is_connected() and not forked.is_cut_off()
    asked = executor == "ray" or (executor is None and engine.workers not in (0, "auto"))
    return warm_workers.serving() if is_own and asked else nullcontext()


def run(
    plan: Plan,
    opening: Opening,
    place: Begins,
    address: str | None,
    watcher: Watcher,
    after: Callable[[Path, Experiment], None],
) -> Weights:
    """Run to the last round, and return its weights; `after` is called at the end, also after an error."""
    experiment, path = plan.experiment, opening.path
    if place != "on Ray":
        moves = False
        try:
            with open_folder(plan, opening) as (folder, before), with_states_folder(plan, opening) as here:
                watcher.started([PLACES[place]])
                left = _watched(_here(here, folder, before, place), watcher)
            moves = left.moves
        finally:
            if not moves:
                after(path, experiment)
        if not moves:
            return left.state.weights
        opening = _behind(plan, opening, left.state)
    # Import Ray only if it is used: the in-process engine works without it.
    from raysim.engine.on_ray.driver import session

    return session.run(plan, opening, address, watcher, after, run_name(experiment, path))


def steps(plan: Plan, opening: Opening | None, place: Begins, address: str | None) -> Generator[Finished]:
    """Pull round by round; without an opening nothing is written."""
    with with_states_folder(plan, opening) as plan:
        left = None
        if place != "on Ray":
            with nullcontext((None, None)) if opening is None else open_folder(plan, opening) as (folder, before):
                left = yield from _here(plan, folder, before, place)
            if not left.moves:
                return
            if opening is not None:
                opening, left = _behind(plan, opening, left.state), None
        from raysim.engine.on_ray.driver import session

        yield from session.rounds(plan, opening, address, None if left is None else (left.state, left.seen))


def can_be_sent(plan: Plan) -> bool:
    """Whether workers can be sent all that the script has passed; else a warning says why not."""
    from raysim.engine.on_ray.cluster import sendable

    if forked.is_cut_off():
        log.warning(
            "workers would end the run sooner, but it stays in this process, because this was forked from one that had "
            "used Ray"
        )
        return False
    if plan.choice.changed:
        log.warning(
            "workers would end the run sooner, but it stays in this process, because there is %s here",
            ", ".join(plan.choice.changed),
        )
        return False
    try:
        sendable.check(plan)
    except ExperimentError as error:
        log.warning("workers would end the run sooner, but it stays in this process: %s", error)
        return False
    return True


def _is_connected() -> bool:
    """Return whether this process is connected to Ray; what a forked one has of its parent's connection is none."""
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized() and not forked.is_cut_off()


def _behind(plan: Plan, opening: Opening, state: ServerState) -> Opening:
    """Return how to go on from the state in the same folder."""
    return Opening(opening.path, state.round, profile=opening.profile, owner=owner_of(plan, opening))


class _Left(NamedTuple):
    """A run when it leaves this process: its last recorded state, what `[stop]` has seen, and whether it moves."""

    state: ServerState
    seen: Seen
    moves: bool


def _here(
    plan: Plan, folder: RunFolder | None, state: ServerState | None, place: Begins
) -> Generator[Finished, None, _Left]:
    """Run in this process, to its end or until it moves."""
    engine, rounds = plan.experiment.engine, plan.experiment.rounds
    device = numerics.choose_device(engine.gpus_per_worker)
    outlook, state = None, state or plan.initial_state()
    seen = stopping.after_all(plan.experiment, () if folder is None else folder.rows)
    if place == "here at first":
        workers = workers_here(engine.cpus_per_worker)
        outlook = Outlook(rounds - state.round, workers, lambda: can_be_sent(plan))
    with numerics.fixed(engine.threads, device, engine.precision):
        executor = InProcess(plan, outlook=outlook)
    run = loop.rounds(plan, executor, state, folder, lambda: bool(outlook and outlook.moves), overlap=False)
    with closing(run):
        while True:
            # Between rounds torch has the reader's settings.
            with numerics.fixed(engine.threads, device, engine.precision):
                try:
                    finished = next(run)
                except StopIteration as end:
                    last: ServerState = end.value
                    break
            if outlook:
                outlook.round()
            seen = stopping.after(plan.experiment, seen, finished.row)
            yield finished
    moves = not stopping.is_over(plan.experiment, last.round, seen.stopped)
    if outlook and moves:
        log.info("round %d: about %.0f s are left in this process, so workers take over", last.round, outlook.left_s)
    return _Left(last, seen, moves)


def _watched(run: Generator[Finished, None, _Left], watcher: Watcher) -> _Left:
    with closing(run):
        while True:
            try:
                watcher.row(next(run).row)
            except StopIteration as end:
                left: _Left = end.value
                return left
