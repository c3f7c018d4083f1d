"""Reads and writes `trials.parquet` of a study, whose metadata have the objective and the exact configurations."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from optuna.trial import FrozenTrial

from raysim import ExperimentError
from raysim.storage import parquet, sealed, sealed_parquet
from raysim.storage.atomic import write as write_file
from raysim.storage.reading import checked_object, json_value, parsing, regular
from tuning import result
from tuning.errors import StudyError
from tuning.folder import identity_of
from tuning.objective import Objective
from tuning.space import Space

NAME = "trials.parquet"
KEY = "raysim_study"
"""Of the metadata."""


@dataclass(frozen=True)
class Tried:
    """A finished trial of a study. number: its place there. values: by dotted key. value: of the objective."""

    number: int
    values: Mapping[str, Any]
    value: float


def write(folder: Path, trials: Sequence[FrozenTrial], space: Space, objective: Objective, identity: str) -> None:
    """Write a row for each trial; see `result.table`. `identity`: that of the study, as its folder has it."""
    about = {
        "objective": objective.model_dump(mode="json"),
        "configurations": [space.values(trial.params) for trial in trials],
    }
    table = result.table(trials, space)
    write_file(folder / NAME, lambda file: sealed_parquet.write(table, file, identity, {KEY: json.dumps(about)}))


def read(folder: Path) -> tuple[Objective, list[Tried]]:
    """Return the objective of a study and its finished trials, the best first.

    Raises:
        StudyError: the file is missing or damaged, or is not of a study; names it.
    """
    path = regular(folder / NAME, StudyError)
    sealed.check(path, StudyError, "The same `raysim tune` writes it again.", last=True)
    table = parquet.read(path, StudyError)
    if (own := identity_of(folder)) is not None and sealed_parquet.owner(path) != own:
        raise StudyError(f"{path} is of another study than {folder}: put back its own file.")
    try:
        with parsing(path, "the trials of a study", StudyError):
            about = checked_object(
                json_value((pq.read_schema(path).metadata or {}).get(KEY.encode(), b"null").decode())
            )
            objective = Objective.model_validate(about["objective"])
            every = zip(table["trial"].to_pylist(), about["configurations"], table["value"].to_pylist(), strict=True)
            found = [
                Tried(int(number), dict(values), float(value)) for number, values, value in every if value is not None
            ]
    except ExperimentError as error:
        raise StudyError(f"{path} is damaged: {error}") from error
    for trial in found:
        if not math.isfinite(trial.value):
            raise StudyError(f"{path} is damaged: trial {trial.number} has the value {trial.value}")
    sign = -1 if objective.is_maximised else 1
    return objective, sorted(found, key=lambda trial: (sign * trial.value, trial.number))
