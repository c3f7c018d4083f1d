"""Generates the reference of Python names, from docstrings by mkdocstrings, and of commands, from their `--help`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from typer.main import get_command
from typer.testing import CliRunner

import raysim
import raysim.data
import raysim.server
import tuning
from raysim.cli import app

PYTHON = "reference/api.md"

MODULES: tuple[ModuleType, ...] = (raysim, raysim.data, raysim.server, tuning)
"""The public modules."""

PYTHON_HEAD = """# Python

Scripts may rely on the names of this page; all others may change from one version to the next.
"""


def python_page() -> str:
    """Return Markdown in which mkdocstrings fills in every public name."""
    return "\n".join([PYTHON_HEAD, *(line for module in MODULES for line in _module(module))])


def _module(module: ModuleType) -> Iterator[str]:
    values = {name: getattr(module, name) for name in module.__all__}
    errors = [name for name, value in values.items() if inspect.isclass(value) and issubclass(value, Exception)]
    classes = [name for name, value in values.items() if inspect.isclass(value) and name not in errors]
    functions = [name for name in values if name not in (*errors, *classes)]
    for title, names in (("functions", functions), ("records", classes), ("errors", errors)):
        if names:
            yield f"## {module.__name__}: {title}\n"
            yield from (f"::: {module.__name__}.{name}\n" for name in names)


COMMANDS = "reference/command-line.md"

COMMANDS_HEAD = """# Command line

This page has the `--help` of every command. Exit codes: 0, done; 1, something broke; 2, the request cannot be carried
out; 130, stopped by Ctrl-C.
"""

COLUMNS = "90"


def command_page() -> str:
    """Return Markdown with every command, its arguments and options."""
    return "\n".join([COMMANDS_HEAD, *_commands(get_command(app), [])])


def _commands(group: Any, above: list[str]) -> Iterator[str]:
    for name, command in group.commands.items():
        words = [*above, name]
        if hasattr(command, "commands"):
            yield from _commands(command, words)
            continue
        result = CliRunner().invoke(app, [*words, "--help"], prog_name="raysim", env={"COLUMNS": COLUMNS})
        yield f"## `raysim {' '.join(words)}`\n\n```text\n{result.output.strip()}\n```\n"
