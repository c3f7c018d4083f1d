"""`raysim replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's folder, or its URI.")],
    index: Annotated[int, typer.Option("--round", min=0, help="The round; 0 is the first.")],
    client: Annotated[str | None, typer.Option(metavar="ID", help="Only this client's update.")] = None,
) -> None:
    """Compute a recorded round once more, in this process, and compare it with the record."""
    from raysim import api
    from raysim.report import replayed

    again = api.replay(folder, index, client=client)
    if isinstance(again, api.Round):
        typer.echo(replayed.beside_record(folder, again.index, again.metrics))
    else:
        typer.echo(replayed.sent(again))
