"""What commands print: messages on standard error, the closing table on standard output."""

from __future__ import annotations

from collections.abc import Sequence

import typer


def say(text: str) -> None:
    """A message, on standard error."""
    typer.echo(text, err=True)


def print_table(lines: Sequence[tuple[str, str]]) -> None:
    """The closing table, on standard output."""
    import sys

    from rich.console import Console

    from raysim.report import closing

    table = closing.table(lines)
    if sys.stdout.isatty():
        Console().print(table)
        return
    # A file has no width to fold paths at, and no use for the blanks that fill up a column.
    console = Console(width=1000, color_system=None)
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))
