"""Prints results in JSON, for other programs: `--json` of every command that prints a result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    import pyarrow as pa

    from raysim.experiment.experiment import Experiment
    from raysim.experiment.stopping import StopReason

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]


def print_json(result: Any) -> None:
    """Print a record; see `plain`."""
    typer.echo(json.dumps(plain(result), indent=2, allow_nan=False))


def plain(value: Any) -> Any:
    """Return records as objects, tables as lists of rows, and paths as texts; a number that is not finite is null.

    >>> plain({"loss": float("nan"), "at": Path("runs"), "rounds": (1, 2)})
    {'loss': None, 'at': 'runs', 'rounds': [1, 2]}
    """
    if hasattr(value, "to_pylist"):
        return plain(value.to_pylist())
    if hasattr(value, "model_dump_json"):
        return json.loads(value.model_dump_json(by_alias=True))
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def of_run(experiment: Experiment, rounds: pa.Table, folder: Path | str, stopped: StopReason | None) -> dict[str, Any]:
    """Return a run's result: its newest figures, and the number of finished rounds."""
    from raysim.report.closing import newest

    figures = {name: newest(rounds, name)[1] for name in rounds.column_names if name != "round"}
    return {
        "experiment": experiment.name,
        "folder": folder,
        "rounds": rounds.num_rows,
        "of": experiment.rounds,
        "stopped": stopped,
        "newest": figures,
    }
