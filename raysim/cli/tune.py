"""Defines `raysim tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from raysim.cli.as_json import Json, print_json
from raysim.cli.options import Address, File, Progress, Set, Unset, load
from raysim.cli.output import INTERRUPTED, print_table, say


def tune(
    file: File,
    changes: Set = None,
    removals: Unset = None,
    trials: Annotated[int | None, typer.Option(min=1, help="How many configurations. [default: as the file]")] = None,
    concurrent: Annotated[int | None, typer.Option(min=1, help="How many at a time. [default: as the file]")] = None,
    storage: Annotated[
        str | None, typer.Option(metavar="URL", help="Where the study is kept. [default: as the file, or study.db]")
    ] = None,
    address: Address = None,
    path: Annotated[
        Path | None, typer.Option("--path", metavar="DIR", help="The study's folder. [default: runs/NAME-tuning]")
    ] = None,
    progress: Progress = True,
    as_json: Json = False,
) -> None:
    """Find the best values of some keys on held-out clients, and evaluate them on the test split.

    The same command continues a study that was stopped.
    """
    import tuning

    experiment = load(file, changes, removals)
    tuning.section_of(experiment)
    given = {"trials": trials, "concurrent": concurrent, "storage": storage}
    settings: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    where = path or tuning.default_folder(experiment)
    try:
        study = tuning.tune(
            experiment,
            address=address,
            path=where,
            progress=progress,
            source=file.read_text(encoding="utf-8"),
            **settings,
        )
    except KeyboardInterrupt:
        say(f"stopped; the same command goes on with the study in {where}")
        raise typer.Exit(INTERRUPTED) from None
    if as_json:
        print_json(study)
    else:
        print_table(tuning.lines(study))
