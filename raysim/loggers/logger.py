"""Defines the logger: opened with a run's first row, called with every row of the records, and closed.

The rows of earlier sessions come first. A logger sends of them what its service lacks: a process that is killed leaves
rows on record that no logger has received, or no service.

Loggers are additional to the records: no logger is part of an experiment or its fingerprint.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from raysim.config.overrides import leaves
from raysim.errors import RunFolderError
from raysim.experiment.experiment import Experiment
from raysim.experiment.row import Row
from raysim.storage import atomic
from raysim.storage.inside import check_links, inside
from raysim.storage.reading import json_object

Log = Callable[[Row], None]


class Logged(NamedTuple):
    """The logged run: its folder, and the first round of this session, counted from 0.

    Rounds before the first are on record; a complete run has no others.
    """

    path: Path
    experiment: Experiment
    first_round: int


Logger = Callable[[Logged], AbstractContextManager[Log]]


def own_folder(path: Path, name: str) -> Path:
    """Return the folder in a run's folder to which a service's library writes; it need not be there.

    Raises:
        RunFolderError: it, or a file in it, is a symbolic link that leads out of the run's folder.
    """
    folder = inside(path, name, path, RunFolderError)
    check_links(folder, RunFolderError)
    return folder


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
    return _stored_ids(path).get(service)


def store_id(path: Path, service: str, identity: str) -> None:
    """Write the run's id with the service into its folder."""
    atomic.write_text(path / FILE, json.dumps({**_stored_ids(path), service: identity}, indent=2) + "\n")


def _stored_ids(path: Path) -> dict[str, str]:
    file = path / FILE
    if not os.path.lexists(file):
        return {}
    found = json_object(file, RunFolderError)
    if odd := [service for service, identity in found.items() if not isinstance(identity, str)]:
        raise RunFolderError(f"{file} is damaged: expected texts, found {found[odd[0]]!r:.40} as the id of {odd[0]!r}.")
    return found
