"""Defines `raysim parts`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from raysim.cli.output import print_text

if TYPE_CHECKING:
    from raysim.config.listing import ListedPart


def parts(
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Only this kind, such as correction or client_optimizer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of records in JSON.")] = False,
) -> None:
    """List the parts that an experiment can name, with package, description and source."""
    import json
    from dataclasses import asdict
    from importlib import metadata

    from raysim.config import listing
    from raysim.config.messages import nearest
    from raysim.errors import ExperimentError

    if kind is not None and kind not in listing.ALL:
        hint = nearest(kind, list(listing.ALL))
        raise ExperimentError(f"--kind must be one of {', '.join(listing.ALL)}, but got {kind!r}{hint}.")
    found = [each for each in listing.parts(metadata.version("raysim")) if kind in (None, each.kind)]
    if as_json:
        typer.echo(json.dumps([asdict(each) for each in found], indent=2))
        return
    for one, (_, _, key) in listing.ALL.items():
        if kind in (None, one):
            passed = f", or {listing.KEYWORDS.get(one, one)}= of a script" if one in listing.KEYS else ""
            print_text(f"{one}: {key}{passed}")
            listed = [each for each in found if each.kind == one]
            _table(listed)
            if not listed:
                print_text("  (none of raysim's or of an installed package)")
    for broken in (each for each in found if not each.kind):
        print_text(f"cannot be had: {broken.problem}")


def _table(listed: Sequence[ListedPart]) -> None:
    rows = [(each.name, f"{each.package} {each.version}", each.summary, each.source) for each in listed]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(2)]
    for each, (name, home, summary, source) in zip(listed, rows, strict=True):
        published = f" [{source}]" if source else ""
        problem = f" CANNOT BE NAMED: {each.problem}" if each.problem else ""
        print_text(f"  {name:{widths[0]}}  {home:{widths[1]}}  {summary}{published}{problem}")
