"""Reads and writes a table of a run's folder: sealed, and marked with its run's fingerprint."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from raysim.errors import RunFolderError
from raysim.run_folder import checkpoint
from raysim.run_folder.experiment_record import stored_owner
from raysim.run_folder.sealed_record import check_sealed
from raysim.storage import atomic, parquet, sealed_parquet
from raysim.storage.reading import regular


def write_table(content: pa.Table, path: Path, owner: str = "") -> None:
    """Write a table as Parquet with its checksum, completely or not at all. `owner`: see `stored_owner`."""
    # After a power cut, a checkpoint must not exist without the rows before it.
    atomic.write(path, lambda file: sealed_parquet.write(content, file, owner), flushed=True, then=checkpoint.THEN)


def read_table(path: Path, file: Path) -> pa.Table:
    """Read a table of a folder's run that `write_table` wrote.

    Raises:
        RunFolderError: it is damaged, has no checksum, or says that it is another run's.
    """
    regular(file, RunFolderError)
    check_sealed(file, last=True)
    table = parquet.read(file, RunFolderError)
    if (owner := sealed_parquet.owner(file)) and owner != (own := stored_owner(path)):
        raise RunFolderError(
            f"{file} belongs to another run ({owner}) than this folder ({own}): put back its own "
            f"file, or start afresh (--overwrite, overwrite=True)."
        )
    return table


def is_of_figures(kind: pa.DataType) -> bool:
    """Whether raysim writes figures in this type."""
    return kind in (pa.int64(), pa.float64(), pa.bool_(), pa.null())
