"""The reference of the command line: what the program itself says with `--help`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

from raysim.cli import app

PAGE = "reference/command-line.md"

HEAD = """# Command line

This is what every command says with `--help`. Exit codes: 0, done; 1, something broke; 2, what was asked for cannot be
done; 130, stopped by Ctrl-C.
"""

COLUMNS = "90"


def page() -> str:
    """Markdown: every command, with its arguments and options."""
    return "\n".join([HEAD, *_commands(get_command(app), [])])


def _commands(group: Any, above: list[str]) -> Iterator[str]:
    for name, command in group.commands.items():
        words = [*above, name]
        if hasattr(command, "commands"):
            yield from _commands(command, words)
            continue
        said = CliRunner().invoke(app, [*words, "--help"], prog_name="raysim", env={"COLUMNS": COLUMNS})
        yield f"## `raysim {' '.join(words)}`\n\n```text\n{said.output.strip()}\n```\n"
