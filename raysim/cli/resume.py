"""`raysim resume`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysim.cli.carry_out import How, carry_out
from raysim.cli.interruptible import interruptible
from raysim.cli.options import Address, Loggers, Progress, loggers_of
from raysim.cli.say import print_table
from raysim.errors import RunFolderError


def resume(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or its URI.")],
    rounds: Annotated[int | None, typer.Option(min=1, help="A new last round, to run on beyond the old one.")] = None,
    trials: Annotated[
        int | None, typer.Option(min=2, help="A new number of trials, where it was run in trials.")
    ] = None,
    address: Address = None,
    progress: Progress = True,
    loggers: Loggers = None,
) -> None:
    """Go on with a run from its newest checkpoint.

    The numbers are the same as if it had never stopped.
    """
    from raysim import api, records, sweep_runs
    from raysim.elsewhere.folder import borrow, fetch
    from raysim.report import closing

    copy = fetch(folder)
    stored, values = sweep_runs.stored_sweep(copy) or (records.stored_experiment(copy), {})
    if values or stored.trials.count > 1:
        changes = [f"rounds={rounds}"] if rounds else []
        changes += [f"trials.count={trials}"] if trials else []
        how = How(address=address, resume=True, progress=progress, loggers=loggers_of(loggers))
        carry_out(stored.changed(changes), values, folder, how)
        return
    if trials is not None:
        raise RunFolderError(f"{folder} holds one run and no trials; run its experiment with --set trials={trials}.")
    with borrow(folder) as where, interruptible(where):
        result = api.resume(where, rounds=rounds, address=address, progress=progress, loggers=loggers_of(loggers))
    print_table(closing.lines(records.stored_experiment(where), result.rounds, where))
