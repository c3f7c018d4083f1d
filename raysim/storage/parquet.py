"""Reads tables in Parquet files that may come from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.errors import RaysimError
from raysim.storage.reading import parsing, regular


def read(path: Path, error: type[RaysimError]) -> pa.Table:
    """Read a table whose columns have different names, and whose values are those of their types.

    Raises:
        RaysimError: of the class `error`; names the file.
    """
    regular(path, error)
    with parsing(path, "a table in Parquet", error):
        # Not `read_table`: it takes folders for parts of tables, and their names for columns.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            found = file.read().replace_schema_metadata(None)
        found.validate(full=True)
        if len(set(found.column_names)) != found.num_columns:
            raise ValueError("two columns have one name")
        return found
