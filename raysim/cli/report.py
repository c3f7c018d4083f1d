"""`raysim report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysim.cli.options import Folders
from raysim.cli.say import say


def report(
    folders: Folders,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Where the report goes. [default: DIR/report; report, for several]"),
    ] = None,
    target: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="The accuracy of rounds to target. [default: 95 % of the best]"),
    ] = None,
) -> None:
    """Make a page with pictures of runs, and each picture as PNG, SVG and CSV.

    A folder is a run's, or holds trials, a sweep or any other runs. Runs that differ in seeds only are put together.
    """
    from raysim.report import build

    made = build.build(folders, out or build.default_folder(folders), target)
    for note in made.notes:
        say(f"note: {note}")
    typer.echo(f"{made.page}, {made.figures} figures")
