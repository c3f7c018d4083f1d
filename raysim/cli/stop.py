"""`raysim stop`."""

from __future__ import annotations

from typing import Annotated

import typer

from raysim.cli.options import Cluster


def stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The run's name, as raysim attach lists it.")],
    address: Cluster = "auto",
) -> None:
    """End a run that goes on on a cluster, with a checkpoint of its last finished round."""
    from raysim import attached
    from raysim.report import runs_under_way

    typer.echo(runs_under_way.ended(attached.stop(name, address=address)))
