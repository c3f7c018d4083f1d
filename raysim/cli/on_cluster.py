"""Defines the commands for runs on a cluster: `raysim attach` and `raysim stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from raysim.cli.options import Cluster, Loggers, Progress, loggers_of
from raysim.cli.output import INTERRUPTED, print_table, say


def attach(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The run's name. [default: list the runs under way]")
    ] = None,
    address: Cluster = "auto",
    progress: Progress = True,
    loggers: Loggers = None,
) -> None:
    """Follow a run on a cluster until it ends; without a name, list the runs.

    Ctrl-C ends only this command: the run continues.
    """
    import time

    from raysim.api import attach as attached
    from raysim.report import closing, runs_under_way

    if name is None:
        typer.echo(runs_under_way.text(attached.under_way(address), time.time()))
        return
    try:
        run, result = attached.follow(name, address, progress, loggers_of(loggers))
    except KeyboardInterrupt:
        say(f"{name} goes on; stop it with: raysim stop {name}")
        raise typer.Exit(INTERRUPTED) from None
    print_table(closing.lines_of(run, result.rounds))


def stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The run's name, as raysim attach lists it.")],
    address: Cluster = "auto",
) -> None:
    """End a run on a cluster, with a checkpoint of its last finished round."""
    from raysim.api import attach as attached
    from raysim.report import runs_under_way

    typer.echo(runs_under_way.ended(attached.stop(name, address=address)))
