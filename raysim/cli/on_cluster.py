"""Defines the commands for runs on a cluster: `raysim attach` and `raysim stop`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysim.cli.as_json import Json, of_run, print_json
from raysim.cli.options import Cluster, Loggers, Progress, loggers_of
from raysim.cli.output import INTERRUPTED, print_table, print_text, say

if TYPE_CHECKING:
    from raysim.engine.rounds.run_status import UnderWay


def attach(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="The run's name. [default: list the runs under way]")
    ] = None,
    address: Cluster = "auto",
    progress: Progress = True,
    loggers: Loggers = None,
    as_json: Json = False,
) -> None:
    """Follow a run on a cluster until it ends; without a name, list the runs.

    Ctrl-C ends only this command: the run continues.
    """
    import time

    from raysim.api import attach as attached
    from raysim.report import closing, runs_under_way

    if name is None:
        listed = attached.under_way(address)
        if as_json:
            print_json([_record(each) for each in listed])
        else:
            print_text(runs_under_way.text(listed, time.time()))
        return
    try:
        run, result = attached.follow(name, address, progress, loggers_of(loggers))
    except KeyboardInterrupt:
        say(f"{name} goes on; stop it with: raysim stop {name}")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json({"host": run.host, **of_run(run.experiment, result.rounds, run.folder, result.stopped)})
    else:
        print_table(closing.lines_of(run, result.rounds))


def stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The run's name, as raysim attach lists it.")],
    address: Cluster = "auto",
    as_json: Json = False,
) -> None:
    """End a run on a cluster, with a checkpoint of its last finished round."""
    from raysim.api import attach as attached
    from raysim.report import runs_under_way

    ended = attached.stop(name, address=address)
    if as_json:
        print_json(_record(ended))
    else:
        print_text(runs_under_way.outcome_of_stop(ended))


def _record(run: UnderWay) -> dict[str, Any]:
    """Return the status of a run, for other programs."""
    known = ("name", "host", "folder", "since_s", "stage", "rounds")
    return {**{name: getattr(run, name) for name in known}, "of": run.experiment.rounds}
