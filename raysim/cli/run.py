"""`raysim run`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from raysim.cli.carry_out import carry_out
from raysim.cli.experiment import default_folder, load
from raysim.cli.options import Address, File, Folder, Loggers, Progress, Set, Unset


def run(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    address: Address = None,
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
    where = path or default_folder(experiment)
    how: dict[str, Any] = {"address": address, "overwrite": overwrite, "resume": resume, "progress": progress}
    how |= {"profile": profile, "loggers": loggers or ()}
    carry_out(experiment, sweep.parse(sweeps or ()), where, how)
