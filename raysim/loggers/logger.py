"""Defines the logger: opened with a run's first row, called with every row of the records, and closed.

Loggers are additional to the records: no logger is part of an experiment or its fingerprint.
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
    """The logged run: its folder, and the first round of this session, counted from 0."""

    path: Path
    experiment: Experiment
    first_round: int


Logger = Callable[[Logged], AbstractContextManager[Log]]


def scalars(row: Row) -> dict[str, float]:
    """Return the row's figures by column: finite numbers, booleans as 0 and 1; without `round`, a logger's step."""
    found = {name: float(value) for name, value in row.items() if isinstance(value, int | float) and name != "round"}
    return {name: value for name, value in found.items() if math.isfinite(value)}


def settings(experiment: Experiment) -> dict[str, str]:
    """Return every key of the experiment and its value: "client.optimizer.lr", "0.1"; absent keys are left out."""
    return {key: str(value) for key, value in leaves(json.loads(experiment.to_json()))}


FILE = "loggers.json"
"""File of a run's ids with tracking services. A resumed run continues there; a run that starts again is new."""


def stored_id(path: Path, service: str) -> str | None:
    """Return the run's id with the service; None if it has none yet."""
    file = path / FILE
    found = json.loads(file.read_text()).get(service) if file.exists() else None
    return None if found is None else str(found)


def store_id(path: Path, service: str, identity: str) -> None:
    """Write the run's id with the service into its folder."""
    file = path / FILE
    known = json.loads(file.read_text()) if file.exists() else {}
    atomic.write_text(file, json.dumps({**known, service: identity}, indent=2) + "\n")
