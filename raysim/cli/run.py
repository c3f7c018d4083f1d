"""`raysim run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysim.cli.carry_out import How, carry_out
from raysim.cli.experiment import load
from raysim.cli.options import Address, File, Folder, Loggers, Progress, Set, Unset, loggers_of
from raysim.cli.say import say

if TYPE_CHECKING:
    from raysim.experiment import Experiment


def run(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    address: Address = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="With --address: leave the run to itself once its workers have started.")
    ] = False,
    path: Folder = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the folder's run, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start afresh where the folder exists.")] = False,
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
            help="Run every value, such as cohort.size=10,50; of several --sweep every combination.",
        ),
    ] = None,
    centralized: Annotated[
        bool, typer.Option("--centralized", help="Train on the pooled data of all training clients instead.")
    ] = False,
) -> None:
    """Run an experiment, and record it in a folder."""
    if resume and overwrite:
        raise typer.BadParameter("--resume goes on with a folder and --overwrite starts it afresh: choose one.")
    from raysim import sweep
    from raysim.central_training import centralized as pooled

    experiment = load(file, changes, removals)
    if centralized:
        experiment = pooled(experiment)
    where = path or experiment.default_folder
    if detach:
        if loggers:
            raise typer.BadParameter("--logger goes with who watches: leave it to raysim attach NAME --logger ...")
        if sweeps or experiment.trials.count > 1:
            raise typer.BadParameter("--detach takes one run; trials and sweeps are carried out by this process.")
        if address is None:
            raise typer.BadParameter("--detach takes a cluster that outlives this process: add --address.")
        _launch(experiment, address, where, overwrite, resume, profile)
        return
    how = How(
        address=address,
        overwrite=overwrite,
        resume=resume,
        progress=progress,
        profile=profile,
        loggers=loggers_of(loggers),
    )
    carry_out(experiment, sweep.parse(sweeps or ()), where, how)


def _launch(experiment: Experiment, address: str, where: Path, overwrite: bool, resume: bool, profile: bool) -> None:
    from raysim import attached

    name = attached.launch(experiment, address=address, path=where, overwrite=overwrite, resume=resume, profile=profile)
    typer.echo(name)
    say(f"goes on in {where}; follow it with: raysim attach {name}; end it with: raysim stop {name}")
