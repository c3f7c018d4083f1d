"""Checks a call of the program that a page shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from typer.main import get_command

import raysim
from raysim.cli import app
from raysim.experiment import sweep

ROOT = Path(__file__).parents[2]


def check_raysim(arguments: list[str]) -> None:
    """Parse a call as the program would, without carrying it out; files must be there and changes fit them."""
    command: Any = get_command(app)
    context = command.make_context("raysim", list(arguments), resilient_parsing=False)
    while hasattr(command, "resolve_command"):
        name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, list(arguments), parent=context)
    file = context.params.get("file")
    # What a command makes is not there yet; `raysim init first` makes first.toml.
    if file is not None and str(file) not in ("FILE", "first.toml") and not str(file).startswith("runs/"):
        exp = raysim.load(ROOT / file, context.params.get("changes") or (), context.params.get("removals") or ())
        if sweeps := context.params.get("sweeps"):
            sweep.points(exp, sweep.parse(sweeps))
