"""Defines the commands that run experiments: `raysim run` and `raysim resume`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

import typer

from raysim.cli.as_json import Json, of_run, print_json
from raysim.cli.options import (
    Address,
    File,
    Folder,
    Local,
    Loggers,
    Progress,
    Set,
    Unset,
    executor_of,
    load,
    loggers_of,
)
from raysim.cli.output import interruptible, print_table, say
from raysim.cli.workers_ahead import workers_ahead
from raysim.errors import RunFolderError

if TYPE_CHECKING:
    from raysim.api.preflight import ExecutorName
    from raysim.api.series import Member
    from raysim.experiment.experiment import Experiment
    from raysim.loggers.open import LoggerName


def run(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    local: Local = False,
    address: Address = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --address: exit once a worker has started; the run goes on.")
    ] = False,
    path: Folder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the folder's run, if there is one.")] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Delete the folder with everything in it, and start afresh."),
    ] = False,
    progress: Progress = True,
    profile: Annotated[
        bool, typer.Option("--profile", help="Write timeline.json: what driver and workers did, for Perfetto.")
    ] = False,
    loggers: Loggers = None,
    sweeps: Annotated[
        list[str] | None,
        typer.Option(
            "--sweep",
            metavar="KEY=VALUE,VALUE",
            help="Run every value, such as cohort.size=10,50; several --sweep run every combination.",
        ),
    ] = None,
    centralized: Annotated[
        bool, typer.Option("--centralized", help="Train on the pooled data of all training clients instead.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run an experiment, and record it in a folder."""
    if resume and overwrite:
        raise typer.BadParameter("--resume continues a folder and --overwrite starts it afresh: choose one.")
    with workers_ahead(file, changes, local, address):
        from raysim.config import overrides
        from raysim.experiment import sweep
        from raysim.experiment.expand import centralized as pooled

        swept = sweep.parse(sweeps or ())
        for change in changes or ():
            if (key := overrides.parted(change)[0]) in swept:
                raise typer.BadParameter(f"{key} is in --set and in --sweep, which would replace it: choose one.")
        experiment = load(file, changes, removals)
        if centralized:
            experiment = pooled(experiment)
        where = path or experiment.default_folder
        if detach:
            if loggers:
                raise typer.BadParameter("--logger goes with who watches: leave it to raysim attach NAME --logger ...")
            if swept or experiment.trials.count > 1:
                raise typer.BadParameter("--detach takes one run; trials and sweeps are carried out by this process.")
            if address is None:
                raise typer.BadParameter("--detach takes a cluster that outlives this process: add --address.")
            name = _launch(experiment, address, where, overwrite, resume, profile)
            if as_json:
                print_json({"name": name, "folder": where})
            else:
                typer.echo(name)
            return
        how = How(
            executor=executor_of(local),
            address=address,
            overwrite=overwrite,
            resume=resume,
            progress=progress,
            profile=profile,
            loggers=loggers_of(loggers),
        )
        _carry_out(experiment, swept, where, how, as_json)


def _launch(experiment: Experiment, address: str, where: Path, overwrite: bool, resume: bool, profile: bool) -> str:
    from raysim.api import attach as attached

    name = attached.launch(experiment, address=address, path=where, overwrite=overwrite, resume=resume, profile=profile)
    say(f"goes on in {where}; follow it with: raysim attach {name}; stop it with: raysim stop {name}")
    return name


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or its URI.")],
    rounds: Annotated[int | None, typer.Option(min=1, help="A new last round, to run on beyond the old one.")] = None,
    trials: Annotated[
        int | None, typer.Option(min=2, help="A new number of trials, where it was run in trials.")
    ] = None,
    local: Local = False,
    address: Address = None,
    progress: Progress = True,
    loggers: Loggers = None,
    as_json: Json = False,
) -> None:
    """Continue a run from its newest checkpoint.

    The numbers are the same as without the stop.
    """
    from raysim.api import run as api
    from raysim.report import closing
    from raysim.run_folder import experiment_record, series_record
    from raysim.storage.remote.folder import local_copy, read_only_copy

    executor = executor_of(local)
    with read_only_copy(folder) as copy:
        stored, values = series_record.stored_sweep(copy) or (experiment_record.stored_experiment(copy), {})
    if rounds is not None and "rounds" in values:
        raise RunFolderError(
            f"{folder} holds a sweep over rounds, so --rounds {rounds} would change none of its points: add a value by "
            f"the command of the sweep (--sweep rounds={','.join(map(str, values['rounds']))},{rounds} --resume)."
        )
    if values or stored.trials.count > 1:
        changes = [f"rounds={rounds}"] if rounds else []
        changes += [f"trials.count={trials}"] if trials else []
        how = How(executor=executor, address=address, resume=True, progress=progress, loggers=loggers_of(loggers))
        _carry_out(stored.changed(changes), values, folder, how, as_json)
        return
    if trials is not None:
        raise RunFolderError(f"{folder} holds one run and no trials; run its experiment with --set trials={trials}.")
    with local_copy(folder) as where, interruptible(where):
        result = api.resume(
            where,
            rounds=rounds,
            executor=executor,
            address=address,
            progress=progress,
            loggers=loggers_of(loggers),
        )
    experiment = experiment_record.stored_experiment(where)
    if as_json:
        print_json(of_run(experiment, result.rounds, folder, result.stopped))
    else:
        print_table(closing.lines(experiment, result.rounds, where))


class How(TypedDict, total=False):
    """The arguments of an execution; see `raysim.run`."""

    executor: ExecutorName | None
    address: str | None
    overwrite: bool
    resume: bool
    progress: bool
    profile: bool
    loggers: Sequence[LoggerName]


def _carry_out(experiment: Experiment, sweep: Mapping[str, list[Any]], folder: Path, how: How, as_json: bool) -> None:
    """Run one experiment, its trials, or the points of a sweep, and print the closing table."""
    from raysim.report import closing
    from raysim.storage.remote.folder import local_copy

    def started(member: Member) -> None:
        say(f"{member.path.relative_to(where)}, seed {member.experiment.seed}")

    with local_copy(folder) as where, interruptible(where):
        if sweep:
            from raysim.api.sweeps import run_sweep

            swept = run_sweep(experiment, sweep, path=where, started=started, **how)
            lines = closing.lines_of_sweep(
                experiment, [(p.path.name, p.rounds, p.stopped) for p in swept.points], where, swept=sweep
            )
            record = {
                "points": [
                    {
                        "values": p.values,
                        "folder": p.path,
                        "stopped": p.stopped,
                        "newest": of_run(experiment, p.rounds, p.path, None)["newest"],
                    }
                    for p in swept.points
                ]
            }
        elif experiment.trials.count > 1:
            from raysim.api.trials import run_trials

            tried = run_trials(experiment, path=where, started=started, **how)
            lines = closing.lines_of_trials(experiment, tried.summary, where, [t.stopped for t in tried.trials])
            record = {"trials": [of_run(experiment, t.rounds, t.path, t.stopped) for t in tried.trials]}
        else:
            from raysim.api import run as api
            from raysim.run_folder import experiment_record

            result = api.run(experiment, path=where, **how)
            # A run that was over has kept its own name and end.
            experiment = experiment_record.stored_experiment(where)
            lines = closing.lines(experiment, result.rounds, where)
            record = of_run(experiment, result.rounds, folder, result.stopped)
    if as_json:
        print_json({"experiment": experiment.name, "folder": folder, **record})
    else:
        print_table(lines)
