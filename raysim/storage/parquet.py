"""Reads tables in Parquet files that may come from elsewhere."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.errors import RaysimError
from raysim.storage import unpacked
from raysim.storage.reading import parsing, regular

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value. Texts are of any length."""

_DECIMAL_BYTES = 32
"""Of a decimal number in Arrow, at most, whatever it is stored as."""

_LEVEL_BYTES = 4
"""Of an entry at each of a column's levels: its offset, or whether it is there."""

_SHARED = "DELTA_BYTE_ARRAY"
"""The encoding whose texts begin with the ones before them: nothing but to read them tells how long they are."""


def read(path: Path, error: type[RaysimError]) -> pa.Table:
    """Read a table whose columns have different names, and whose values are those of their types.

    Raises:
        RaysimError: of the class `error`; names the file. Also, before it is unpacked: it needs more memory than is
            free.
    """
    regular(path, error)
    with parsing(path, "a table in Parquet", error):
        # Not `read_table`: it takes folders for parts of tables, and their names for columns.
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            _check_encodings(path, file, error)
            unpacked.check(path, _numbers_bytes(file), error)
            if _most_text_bytes(file) > unpacked.ALWAYS_BYTES:
                unpacked.check(path, _numbers_bytes(file) + _text_bytes(path, file), error)
            found = file.read().replace_schema_metadata(None)
        found.validate(full=True)
        if len(set(found.column_names)) != found.num_columns:
            raise ValueError("two columns have one name")
        return found


def _numbers_bytes(file: pq.ParquetFile) -> int:
    """Return the bytes of all values and levels, of texts without their letters, as the footer says."""
    return sum(
        values * (_width(column) + _LEVEL_BYTES * (1 + column.max_definition_level + column.max_repetition_level))
        for column, values in ((file.schema.column(place), _values(file, place)) for place in range(len(file.schema)))
    )


def _values(file: pq.ParquetFile, place: int) -> int:
    return sum(max(0, chunk.num_values) for chunk in _chunks(file, place))


def _chunks(file: pq.ParquetFile, place: int) -> list[pq.ColumnChunkMetaData]:
    return [file.metadata.row_group(group).column(place) for group in range(file.num_row_groups)]


def _width(column: pq.ColumnSchema) -> int:
    stored = _WIDTHS.get(str(column.physical_type), max(0, int(column.length)))
    return max(stored, _DECIMAL_BYTES) if column.logical_type.type == "DECIMAL" else stored


def _texts(file: pq.ParquetFile) -> list[int]:
    """Return the places of the columns of texts."""
    return [place for place in range(len(file.schema)) if file.schema.column(place).physical_type == "BYTE_ARRAY"]


def _check_encodings(path: Path, file: pq.ParquetFile, error: type[RaysimError]) -> None:
    for place in range(len(file.schema)):
        for chunk in _chunks(file, place):
            if _SHARED in chunk.encodings:
                raise error(
                    f"{path}: the column {chunk.path_in_schema!r:.100} has the encoding {_SHARED}, which does not tell "
                    f"how much it unpacks to: write the file again by pyarrow.parquet.write_table, which has another."
                )


def _most_text_bytes(file: pq.ParquetFile) -> int:
    """Return a bound of the letters of all texts: none is longer than what is stored of its column."""
    chunks = (chunk for place in _texts(file) for chunk in _chunks(file, place))
    return sum(chunk.num_values * chunk.total_uncompressed_size for chunk in chunks)


def _text_bytes(path: Path, file: pq.ParquetFile) -> int:
    """Return the bytes of all texts; they are read in the form in which equal ones are there once."""
    paths = [file.schema.column(place).path for place in _texts(file)]
    total = 0
    with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=paths) as coded:
        for group in range(coded.num_row_groups):
            for column in coded.read_row_group(group, columns=paths).columns:
                total += sum(unpacked.plain_bytes(chunk) for chunk in column.chunks)
    return total
