"""Runs on a cluster that need no script: start one, see which there are, follow one, end one."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from raysim.api.preflight import check_one, folder_of, is_whole, opening_of
from raysim.api.run import Result
from raysim.engine import wire
from raysim.engine.parts import Parts, takes_parts
from raysim.engine.plan.resolve import log_beginning, resolve
from raysim.engine.rounds.under_way import UnderWay, Watcher, run_name
from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment.experiment import Experiment
from raysim.loggers.logger import Log
from raysim.loggers.open import LoggerName, Loggers, check
from raysim.storage.remote.folder import read_only_copy

if TYPE_CHECKING:
    from raysim.report.progress import Progress

log = logging.getLogger("raysim")

AUTO = "auto"
"""The address of the cluster that this machine is a part of."""


@takes_parts
def launch(
    experiment: Experiment,
    *,
    address: str = AUTO,
    path: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    profile: bool = False,
    **parts: Unpack[Parts],
) -> str:
    """Start a run on a cluster, and leave it to itself once its workers have started.

    The arguments are those of `raysim.run`. Nothing is shown and nothing logged, until somebody attaches to it.

    Returns:
        The run's name: the experiment's, with the folder's behind it where that is another, and a number where a run
        of that name is under way.

    Raises:
        RaysimError: as `raysim.run` before its first round; then nothing goes on.
    """
    check_one(experiment)
    if experiment.engine.workers == 0:
        raise ExperimentError(
            "engine.workers is 0, which runs in this process, and such a run ends with it: name a number of workers, "
            'or "auto".'
        )
    plan = resolve(experiment, **parts)
    # What is at a URI is put there by the driver: this process may be gone by then.
    opening = opening_of(plan, read_only_copy(folder_of(experiment, path)), resume, overwrite, profile)
    if is_whole(plan, opening):
        raise RunFolderError(f"{opening.path} holds all {experiment.rounds} rounds: there is nothing to start.")
    log_beginning(plan)
    from raysim.engine.on_ray.driver import session
    from raysim.report import curve

    return session.launch(plan, opening, address, curve.of_run, run_name(experiment, opening.path))


def under_way(address: str = AUTO) -> list[UnderWay]:
    """The runs on a cluster that others can attach to, oldest first."""
    from raysim.engine.on_ray.cluster import named
    from raysim.engine.on_ray.cluster.cluster import connected

    with connected(address):
        return named.under_way()


def attach(
    name: str,
    *,
    address: str = AUTO,
    progress: bool | None = None,
    loggers: Sequence[LoggerName | Log] = (),
) -> Result:
    """Follow a run that was started elsewhere until it ends, and return what it leaves.

    It may end before its last round, when it is stopped. Whoever follows does not hold it: it goes on without them.
    The result's path is as the run's machine names it.

    Args:
        name: one of `raysim.under_way()`.
        address: of the cluster.
        progress: as for `raysim.run`.
        loggers: as for `raysim.run`; each is called with the rounds that are finished from now on. Those with a name
            need the run's folder, and are left out, with a warning, where that is on another machine.

    Raises:
        UnknownRunError: there is no such run.
        RaysimError: what the run failed with.
    """
    _, result = follow(name, address, progress, loggers)
    return result


def follow(
    name: str, address: str, progress: bool | None, loggers: Sequence[LoggerName | Log]
) -> tuple[UnderWay, Result]:
    """`attach`, and what the run said of itself at the beginning."""
    check(loggers)
    from raysim.engine.on_ray.cluster import named
    from raysim.engine.on_ray.cluster.cluster import connected
    from raysim.engine.on_ray.cluster.raised import answer
    from raysim.engine.on_ray.driver import session
    from raysim.report.progress import Silent, Terminal

    with connected(address):
        driver = named.find(name)
        run: UnderWay = answer(driver.about.remote())
        show: Progress = Terminal.where_wanted(progress, run.experiment.rounds) or Silent()
        logs = Loggers(_loggers_here(run, loggers), run.path, run.experiment)

        def tell(row: Mapping[str, Any]) -> None:
            if row["round"] < run.rounds:
                show.joined(row)
            else:
                show.row(row)
                logs.row(row)

        # From the newest round on: it shows how the run stands.
        seen = max(0, run.rounds - 1) if run.stage != "starting" else None
        with show, logs:
            session.follow(driver, Watcher(show.started, tell), run.folder, seen)
        remains = answer(driver.remains.remote(), run.folder)
        if remains.behind is not None:
            log.warning("%s, on %s: %s", run.name, run.host, remains.behind)
        return run, Result(wire.unpack(remains.params), remains.rounds, remains.clients, run.path)


def _loggers_here(run: UnderWay, loggers: Sequence[LoggerName | Log]) -> Sequence[LoggerName | Log]:
    """Those that need nothing of the run's folder, where that is on another machine."""
    left_out = [] if run.is_here else [name for name in loggers if not callable(name)]
    if left_out:
        log.warning(
            "The folder of %s is on %s, and the logger %s needs it: attach there. It is left out here.",
            run.name,
            run.host,
            ", ".join(left_out),
        )
    return [asked for asked in loggers if asked not in left_out]


def stop(name: str, *, address: str = AUTO) -> UnderWay:
    """End a run, and wait until its last finished round is checkpointed: `raysim.resume` goes on from there.

    Returns:
        How it stands now.

    Raises:
        UnknownRunError: there is no such run.
        RaysimError: what the run failed with meanwhile.
    """
    from raysim.engine.on_ray.cluster import named
    from raysim.engine.on_ray.cluster.cluster import connected
    from raysim.engine.on_ray.cluster.raised import answer
    from raysim.engine.on_ray.driver import session

    with connected(address):
        driver = named.find(name)
        run: UnderWay = answer(driver.about.remote())
        session.stop(driver, run.folder)
        ended: UnderWay = answer(driver.about.remote(), run.folder)
        return ended
