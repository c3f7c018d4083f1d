"""Reads rounds.parquet: a row for each finished round."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa

from raysim.experiment.row import Row
from raysim.run_folder.checked_tables import check_reaches, checked_rounds
from raysim.run_folder.files import ROUNDS
from raysim.run_folder.rows import table
from raysim.run_folder.run_table import read_table


def read_rounds(path: Path) -> pa.Table:
    """The rounds so far; an empty table before the first are written.

    Raises:
        RunFolderError: the file is damaged, or rows are lost.
    """
    file = path / ROUNDS
    if not os.path.lexists(file):
        return table([])
    return checked_rounds(read_table(path, file), file)


def rows_before(path: Path, done: int) -> list[Row]:
    """Read the rows of the rounds that a checkpoint has behind it.

    Raises:
        RunFolderError: as `read_rounds`; or rows are lost at the end.
    """
    rounds = read_rounds(path)
    check_reaches(rounds.num_rows, done, path / ROUNDS)
    rows: list[Row] = rounds.slice(0, done).to_pylist()
    return rows
