"""A logger: opened for a run when its first row is there, then called with every row of the records, and closed.

Loggers stand beside the records, which stay what a run is: none of them is part of an experiment or its fingerprint.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from raysim.config.overrides import leaves
from raysim.experiment.experiment import Experiment
from raysim.storage import atomic

Row = Mapping[str, Any]
Log = Callable[[Row], None]


class Logged(NamedTuple):
    """The run that is logged: its folder, and the round (0 for the first) with which this session begins."""

    path: Path
    experiment: Experiment
    first_round: int


Logger = Callable[[Logged], AbstractContextManager[Log]]


def scalars(row: Row) -> dict[str, float]:
    """The row's figures: finite numbers under their own names, booleans as 0 and 1; `round` is the step of a logger."""
    found = {name: float(value) for name, value in row.items() if isinstance(value, int | float) and name != "round"}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def settings(experiment: Experiment) -> dict[str, str]:
    """Every key of the experiment as a path, with its value: "client.optimizer.lr", "0.1"; absent ones are left out."""
    return {key: str(value) for key, value in leaves(json.loads(experiment.to_json()))}


FILE = "loggers.json"
"""In a run's folder: its id with each tracking service. A resumed run goes on there, one that starts afresh is new."""


def stored_id(path: Path, service: str) -> str | None:
    """The run's id with the service; None where it has none yet."""
    file = path / FILE
    found = json.loads(file.read_text()).get(service) if file.exists() else None
    return None if found is None else str(found)


def store_id(path: Path, service: str, identity: str) -> None:
    """Keep the run's id with the service in its folder."""
    file = path / FILE
    known = json.loads(file.read_text()) if file.exists() else {}
    atomic.write_text(file, json.dumps({**known, service: identity}, indent=2) + "\n")
