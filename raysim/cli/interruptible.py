"""Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from raysim.cli.exit_codes import INTERRUPTED
from raysim.cli.say import say


@contextmanager
def interruptible(path: Path) -> Iterator[None]:
    """Ctrl-C inside ends the command, and says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        from raysim import records
        from raysim.elsewhere.folder import named

        done = records.read_rounds(path).num_rows
        after = f"after round {done:,}" if done else "before the first round was finished"
        if (path / "experiment.json").exists() and not (path / "checkpoints").exists():
            after = "among several runs"
        say(f"stopped {after}" + (f"; go on with: raysim resume {named(path)}" if path.exists() else ""))
        raise typer.Exit(INTERRUPTED) from None
