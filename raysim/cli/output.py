"""Prints messages and closing tables, and names the exit codes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from raysim.cli.as_json import print_json
from raysim.config.printable import printable

FAILED = 1
"""An error during the work."""

MISUSED = 2
"""A request that cannot be carried out."""

INTERRUPTED = 130
"""Ctrl-C: 128 plus the number of SIGINT, as in shells."""


def say(text: str) -> None:
    """Print a message on standard error."""
    typer.echo(printable(text), err=True)


def print_text(text: str) -> None:
    """Print a text on standard output: names of folders and what files say may hold control characters."""
    typer.echo(printable(text))


def print_table(lines: Sequence[tuple[str, str]]) -> None:
    """Print the closing table on standard output."""
    import sys

    from rich.console import Console

    from raysim.report import closing

    table = closing.table(lines)
    if sys.stdout.isatty():
        Console().print(table)
        return
    # A file has no width at which to fold paths, and needs no blanks that fill a column.
    console = Console(width=1000, color_system=None)
    with console.capture() as captured:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in captured.get().splitlines()))


def show(result: Any, lines: Callable[[], Sequence[tuple[str, str]]], as_json: bool) -> None:
    """Print a result as one JSON document, or else the lines as a table."""
    if as_json:
        print_json(result)
    else:
        print_table(lines())


def of_picture(files: Sequence[Path]) -> str:
    """Return the files of one picture in one line.

    >>> of_picture([Path("out/curve.png"), Path("out/curve.csv")])
    'out/curve.png, .csv'
    """
    first, *others = files
    return ", ".join([str(first), *(file.suffix for file in others)])


@contextmanager
def continuing(what: str = "") -> Iterator[None]:
    """End the command at Ctrl-C inside the block; `what`: with what the same command goes on."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped; the same command goes on" + (f" with {what}" if what else ""))
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def interruptible(path: Path) -> Iterator[None]:
    """End the command at Ctrl-C inside the block, with a message how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        from raysim.run_folder import files, round_table
        from raysim.storage.remote.folder import named, resume_command

        done = round_table.read_rounds(path).num_rows
        after = f"after round {done:,}" if done else "before the first round was finished"
        if (path / files.RECORD).exists() and not (path / "checkpoints").exists():
            after = "among several runs"
        say(f"stopped {after}" + (f"; go on with: {resume_command(named(path))}" if path.exists() else ""))
        raise typer.Exit(INTERRUPTED) from None
