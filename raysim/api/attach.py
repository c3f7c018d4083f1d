"""Starts, lists, follows and ends runs on a cluster that need no script."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from raysim.api.preflight import check_one, folder_of, is_whole, opening_of
from raysim.api.run import Result
from raysim.config.flag import check_choice
from raysim.engine import wire
from raysim.engine.parts import Parts, takes_parts
from raysim.engine.plan.beginnings import log_beginning
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds.auto_trainer import with_kept_trainer
from raysim.engine.rounds.run_status import UnderWay, Watcher, run_name
from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment import stopping
from raysim.experiment.experiment import Experiment
from raysim.loggers.logger import Log
from raysim.loggers.open import LoggerName, Loggers, check
from raysim.run_folder import round_table, stop_record
from raysim.storage.remote.folder import changing, read_only_copy, uri_in_messages

if TYPE_CHECKING:
    from raysim.report.progress import Progress

log = logging.getLogger("raysim")

AUTO = "auto"
"""The address of the cluster to which this machine belongs."""


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
    """Start a run on a cluster; returns when a worker has started. The run continues without the script.

    The arguments are those of `raysim.run`. The run shows and logs nothing until a user attaches to it.

    Returns:
        The run's name: the experiment's, plus the folder's if that differs, plus a number if a run has that name
        already.

    Raises:
        RaysimError: as `raysim.run` before its first round; then no run continues.
    """
    check_one(experiment)
    if experiment.engine.workers == 0:
        raise ExperimentError(
            "engine.workers is 0, which runs in this process, and such a run ends with it: name a number of workers, "
            'or "auto".'
        )
    # What is read here must be what the driver goes on with, which says so too, and uploads to a URI: this process may
    # have ended by then.
    with read_only_copy(folder_of(experiment, path)) as where, changing(where):
        plan = with_kept_trainer(resolve(experiment, **parts), where if resume else None)
        opening = opening_of(plan, where, resume, overwrite, profile)
        if is_whole(plan, opening):
            why = f"holds all {experiment.rounds} rounds"
            if opening.stopped is not None:
                why = f"has stopped {stopping.text(experiment, opening.stopped)}"
            raise RunFolderError(f"{opening.path} {why}: there is nothing to start.")
        log_beginning(plan)
        from raysim.engine.on_ray.driver import session
        from raysim.report import curve

        return session.launch(plan, opening, address, curve.of_run, run_name(experiment, opening.path))


def under_way(address: str = AUTO) -> list[UnderWay]:
    """Return the runs on a cluster to which a user can attach, oldest first."""
    from raysim.engine.on_ray.cluster import run_names
    from raysim.engine.on_ray.cluster.cluster import connected

    with connected(address):
        return run_names.under_way()


def attach(
    name: str,
    *,
    address: str = AUTO,
    progress: bool | None = None,
    loggers: Sequence[LoggerName | Log] = (),
) -> Result:
    """Follow a run on a cluster until it ends, and return its result.

    A run that is stopped ends before its last round. If the following script ends, the run continues. The result's path
    is a path on the run's machine.

    Args:
        name: one of `raysim.under_way()`.
        address: of the cluster.
        progress: as for `raysim.run`.
        loggers: as for `raysim.run`; functions receive the rounds that finish from now on. Loggers with a name need the
            run's folder; if that is on another machine, raysim warns and leaves them out.

    Raises:
        UnknownRunError: no run has this name.
        RaysimError: the run failed with this error.
    """
    check_choice("progress", progress)
    _, result = follow(name, address, progress, loggers)
    return result


def follow(
    name: str, address: str, progress: bool | None, loggers: Sequence[LoggerName | Log]
) -> tuple[UnderWay, Result]:
    """Do `attach`; also returns the run's status at the beginning."""
    check(loggers)
    from raysim.engine.on_ray.cluster.cluster import connected
    from raysim.engine.on_ray.cluster.remote_errors import answer
    from raysim.engine.on_ray.driver import session
    from raysim.report.progress import Silent, Terminal

    with connected(address):
        driver = session.find(name)
        run: UnderWay = answer(driver.about.remote())
        show: Progress = Terminal.where_wanted(progress, run.experiment.rounds) or Silent()
        loggers = _loggers_here(run, loggers)
        logs = Loggers(loggers, run.path, run.experiment, first=run.rounds)

        def tell(row: Mapping[str, Any]) -> None:
            if row["round"] < run.rounds:
                show.joined(row)
            else:
                show.row(row)
            logs.row(row)

        with changing(run.path), uri_in_messages(run.path), show, logs:
            seen = _seen(run, loggers) if run.stage != "starting" else None
            session.follow(driver, Watcher(show.started, tell), run.folder, seen)
        remains = answer(driver.remains.remote(), run.folder)
        if remains.behind is not None:
            log.warning("%s, on %s: %s", run.name, run.host, remains.behind)
        stopped = stop_record.stop_reason(run.experiment, remains.rounds)
        return run, Result(wire.unpack(remains.params), remains.rounds, remains.clients, run.path, stopped)


def _seen(run: UnderWay, loggers: Sequence[LoggerName | Log]) -> int:
    """Return how many rounds to skip: the newest shows the run's progress; the first that loggers lack is not on disk.

    The driver writes rows a little later than it tells them.
    """
    newest = max(0, run.rounds - 1)
    if all(map(callable, loggers)):
        return newest
    on_disk: int = round_table.read_rounds(run.path).num_rows
    return min(newest, on_disk)


def _loggers_here(run: UnderWay, loggers: Sequence[LoggerName | Log]) -> Sequence[LoggerName | Log]:
    """Return the loggers; if the run's folder is on another machine, only those that do not need it."""
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
    """End a run, and wait until its last finished round is checkpointed: `raysim.resume` continues from there.

    Returns:
        The run's status after its end.

    Raises:
        UnknownRunError: no run has this name.
        RaysimError: the run failed with this error meanwhile.
    """
    from raysim.engine.on_ray.cluster.cluster import connected
    from raysim.engine.on_ray.cluster.remote_errors import answer
    from raysim.engine.on_ray.driver import session

    with connected(address):
        driver = session.find(name)
        run: UnderWay = answer(driver.about.remote())
        session.stop(driver, run.folder)
        ended: UnderWay = answer(driver.about.remote(), run.folder)
        return ended
