"""Checks the tables of a run's folder: the columns that readers rely on, and a row for every round."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path

import pyarrow as pa

from raysim.errors import RunFolderError
from raysim.run_folder.files import ROUNDS, client_file

_log = logging.getLogger(__name__)

_IDS = frozenset({"rejected_clients", "catastrophic_cohort"})
"""Columns of lists of clients; every other column of rounds holds figures."""

CLIENT_SCHEMA = pa.schema(
    [
        ("round", pa.int64()),
        ("split", pa.string()),
        ("client", pa.string()),
        ("examples", pa.int64()),
        ("loss", pa.float64()),
        ("accuracy", pa.float64()),
        ("tuned_loss", pa.float64()),
        ("tuned_accuracy", pa.float64()),
    ]
)
"""The columns of every row of evaluated clients; those of user-defined metrics follow."""

_NEVER_NULL = ("round", "split", "client", "examples")


def checked_rounds(found: pa.Table, file: Path) -> pa.Table:
    """Return a table of rounds that has the rows 0, 1, 2, ... with figures.

    Raises:
        RunFolderError: rows are lost or repeated, or a column holds something else.
    """
    for field in found.schema:
        is_ids = pa.types.is_list(field.type) and pa.types.is_string(field.type.value_type)
        if not (_is_written_type(field.type) or (field.name in _IDS and is_ids)):
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


def check_reaches(num_rows: int, done: int, file: Path) -> None:
    """Check that there are rows of all rounds that a checkpoint has behind it.

    Raises:
        RunFolderError: rows are lost.
    """
    if num_rows < done:
        raise RunFolderError(
            f"{file} has rows of {num_rows} rounds, but the newest checkpoint has {done} rounds behind it: rows are "
            f"lost. Put back the whole file; or delete the checkpoints of more than {num_rows} rounds, if an earlier "
            f"one is there, and resume; or start afresh (--overwrite, overwrite=True)."
        )


def warn_of_lost_clients(found: Collection[int], evaluated: Iterable[int], path: Path) -> None:
    """Warn of rounds whose row has an evaluation, but which have no table of clients: no number of the run needs it.

    Without a word, the clients' figures would lack these rounds.
    """
    if lost := [index for index in evaluated if index not in found]:
        rounds = ", ".join(map(str, lost[:20])) + (", ..." if len(lost) > 20 else "")
        _log.warning(
            "%s is lost: the run goes on, but its figures by client lack the evaluations after these rounds, which %s "
            "has: %s. Put back what was in %s to have them",
            client_file(path, lost[0]),
            ROUNDS,
            rounds,
            path / "clients",
        )


def checked_clients(found: pa.Table, file: Path, index: int) -> pa.Table:
    """Return a table of the clients evaluated after round `index`, whose columns are those that raysim writes.

    Raises:
        RunFolderError: a column is missing, or holds something else; or the rows are of another round.
    """
    for field in CLIENT_SCHEMA:
        if field.name not in found.column_names:
            if field.name.startswith("tuned_"):
                continue
            raise RunFolderError(f"{file} is damaged: expected the column {field.name!r}, found none of that name.")
        kind = found.schema.field(field.name).type
        if kind != field.type and not (field.name not in _NEVER_NULL and pa.types.is_null(kind)):
            raise RunFolderError(f"{file} is damaged: expected {field.type} in column {field.name!r}, found {kind}.")
    for name in _NEVER_NULL:
        if found[name].null_count:
            raise RunFolderError(f"{file} is damaged: expected a value in every row of column {name!r}.")
    for field in found.schema:
        if field.name not in CLIENT_SCHEMA.names and not _is_written_type(field.type):
            raise RunFolderError(f"{file} is damaged: expected figures in column {field.name!r}, found {field.type}.")
    if other := set(found["round"].to_pylist()) - {index}:
        raise RunFolderError(
            f"{file} must have rows of round {index}, as its name says, but has rows of round {min(other)}: put back "
            f"the file that was there, or start afresh (--overwrite, overwrite=True)."
        )
    return found


def _is_written_type(kind: pa.DataType) -> bool:
    """Whether raysim writes figures in this type."""
    return kind in (pa.int64(), pa.float64(), pa.bool_(), pa.null())
