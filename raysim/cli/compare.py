"""`raysim compare`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from raysim.cli.options import Folders
from raysim.cli.say import say


def compare(
    folders: Folders,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="A figure of the records. [default: each evaluation's accuracy]"),
    ] = None,
    test: Annotated[Literal["t", "wilcoxon"], typer.Option(help="The paired test.")] = "t",
    form: Annotated[Literal["text", "markdown", "latex"], typer.Option("--format", help="Of the table.")] = "text",
) -> None:
    """Compare methods: mean, deviation, and the difference from the first, paired by seed and tested."""
    from raysim.report import comparison, comparison_table, runs
    from raysim.report.groups import grouped

    found, unread = runs.read_all(folders)
    groups, careful = grouped(found)
    for note in (*unread, *careful):
        say(f"note: {note}")
    tables = [comparison.compare(groups, metric, test) for metric in metrics or comparison.default_metrics(groups)]
    typer.echo("\n\n".join(comparison_table.written(table, form) for table in tables))
