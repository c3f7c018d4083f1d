"""Reads rounds.parquet: a row for each finished round, none lost, and figures in its columns."""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import pyarrow as pa

from raysim.errors import CheckpointError, RunFolderError
from raysim.experiment.row import Row
from raysim.run_folder import experiment_record, files, kept_checkpoints
from raysim.run_folder.files import ROUNDS
from raysim.run_folder.rows import table
from raysim.run_folder.run_table import is_of_figures, read_table

_IDS = frozenset({"rejected_clients", "catastrophic_cohort"})
"""Columns of lists of clients; every other column of rounds holds figures."""


def read_rounds(path: Path) -> pa.Table:
    """The rounds so far; an empty table before the first are written.

    Raises:
        RunFolderError: the file is damaged, or rows are lost, or the whole file; or a checkpoint of more rounds has
            another format.
    """
    file = path / ROUNDS
    # Listed first: a run under way writes its rows before their checkpoint.
    listed = files.checkpoints(path)
    found = _checked(read_table(path, file), file) if os.path.lexists(file) else table([])
    ahead = {done: checkpoint for done, checkpoint in listed.items() if done > found.num_rows}
    if ahead:
        # A run that goes on from an earlier checkpoint leaves the damaged ones, which say nothing of its rows.
        _check_reaches(found.num_rows, _newest(path, ahead, file), file)
    return found


def _newest(path: Path, ahead: Mapping[int, Path], file: Path) -> int:
    """Return the number of rounds of the newest intact one of these checkpoints; 0 if there is none.

    Raises:
        RunFolderError: one has another format.
    """
    try:
        return kept_checkpoints.newest_intact(ahead, experiment_record.stored_owner(path))
    except CheckpointError as error:
        advice = experiment_record.other_version(path)
        raise RunFolderError(f"Whether {file} has lost rows cannot be known: {error}{advice}") from None


def rows_before(path: Path, done: int) -> list[Row]:
    """Read the rows of the rounds that a checkpoint has behind it.

    Raises:
        RunFolderError: as `read_rounds`; or rows are lost at the end.
    """
    rounds = read_rounds(path)
    _check_reaches(rounds.num_rows, done, path / ROUNDS)
    rows: list[Row] = rounds.slice(0, done).to_pylist()
    return rows


def _checked(found: pa.Table, file: Path) -> pa.Table:
    """Return a table of rounds that has the rows 0, 1, 2, ... with figures.

    Raises:
        RunFolderError: rows are lost or repeated, or a column holds something else.
    """
    for field in found.schema:
        is_ids = pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type)
        if not (is_of_figures(field.type) or (field.name in _IDS and is_ids)):
            raise RunFolderError(f"{file} is damaged: expected figures in column {field.name!r}, found {field.type}.")
    if "round" not in found.column_names or found.schema.field("round").type != pa.int64():
        raise RunFolderError(f"{file} is damaged: expected whole numbers in column 'round'.")
    rounds = found["round"].to_pylist()
    if rounds != list(range(len(rounds))):
        place = next(place for place, index in enumerate(rounds) if index != place)
        shown = ", ".join(map(str, islice(rounds, 20))) + (", ..." if len(rounds) > 20 else "")
        raise RunFolderError(
            f"{file} must have one row for each round, in order from 0, but where that of round {place} belongs there "
            f"is that of round {rounds[place]} (rows: {shown}). Rows were lost or changed after raysim wrote them: put "
            f"back the whole file, or start afresh (--overwrite, overwrite=True)."
        )
    return found


def _check_reaches(num_rows: int, done: int, file: Path) -> None:
    """Check that there are rows of all rounds that a checkpoint has behind it.

    Raises:
        RunFolderError: rows are lost, or the file is missing.
    """
    if num_rows < done and not os.path.lexists(file):
        raise RunFolderError(
            f"{file} is missing, but the newest checkpoint has {done} rounds: put the file back, or start afresh "
            f"(--overwrite, overwrite=True)."
        )
    if num_rows < done:
        raise RunFolderError(
            f"{file} has rows of {num_rows} rounds, but the newest checkpoint has {done} rounds behind it: rows are "
            f"lost. Put back the whole file; or delete the checkpoints of more than {num_rows} rounds, if an earlier "
            f"one is there, and resume; or start afresh (--overwrite, overwrite=True)."
        )
