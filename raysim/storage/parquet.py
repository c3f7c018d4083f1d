"""Reads tables in Parquet files that may come from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.errors import RaysimError
from raysim.storage import unpacked
from raysim.storage.parquet_pages import Chunk, chunks, pages
from raysim.storage.reading import parsing, regular

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
"""Bytes of a value. Texts are of any length."""

_DECIMAL_BYTES = 32
"""Of a decimal number in Arrow, at most, whatever it is stored as."""

_LEVEL_BYTES = 4
"""Of an entry at each of a column's levels: its offset, or whether it is there."""

_ENCODINGS = MappingProxyType(
    {
        0: "PLAIN",
        2: "PLAIN_DICTIONARY",
        3: "RLE",
        4: "BIT_PACKED",
        5: "DELTA_BINARY_PACKED",
        8: "RLE_DICTIONARY",
        9: "BYTE_STREAM_SPLIT",
    }
)
"""Encodings by their numbers in the format, with which values take no more memory than their page and their number."""

_UNBOUND = MappingProxyType({6: "DELTA_LENGTH_BYTE_ARRAY", 7: "DELTA_BYTE_ARRAY"})
"""The first says itself how many lengths it has, the texts of the other begin with the ones before them: nothing but to
read them tells how much they unpack to."""


def read(path: Path, error: type[RaysimError]) -> pa.Table:
    """Read a table whose columns have different names, and whose values are those of their types.

    Raises:
        RaysimError: of the class `error`; names the file. Also, before it is unpacked: it needs more memory than is
            free.
    """
    regular(path, error)
    with parsing(path, "a table in Parquet", error):
        # Not `read_table`: it takes folders for parts of tables, and their names for columns.
        with pq.ParquetFile(_place(path), page_checksum_verification=True) as file:
            stored = _stored(path, file, error)
            # The columns are unpacked at the same time, each a page at a time; texts are what is in their pages.
            at_work = _numbers_bytes(file, stored) + sum(column.largest_page for column in stored)
            unpacked.check(path, max(at_work, sum(column.all_pages for column in stored)), error)
            if sum(column.letters for column in stored) > unpacked.ALWAYS_BYTES:
                unpacked.check(path, _numbers_bytes(file, stored) + _text_bytes(path, file), error)
            found = file.read().replace_schema_metadata(None)
        found.validate(full=True)
        if len(set(found.column_names)) != found.num_columns:
            raise ValueError("two columns have one name")
        return found


def _place(path: Path) -> Path:
    # pyarrow would take a first part "~" for the user's home.
    return path.absolute()


def _numbers_bytes(file: pq.ParquetFile, stored: Sequence[_Stored]) -> int:
    """Return the bytes of all values and levels, of texts without their letters."""
    columns = [file.schema.column(place) for place in range(len(file.schema))]
    return sum(
        own.values * (_width(column) + _LEVEL_BYTES * (1 + column.max_definition_level + column.max_repetition_level))
        for own, column in zip(stored, columns, strict=True)
    )


def _width(column: pq.ColumnSchema) -> int:
    stored = _WIDTHS.get(str(column.physical_type), max(0, int(column.length)))
    return max(stored, _DECIMAL_BYTES) if column.logical_type.type == "DECIMAL" else stored


def _texts(file: pq.ParquetFile) -> list[int]:
    """Return the places of the columns of texts."""
    return [place for place in range(len(file.schema)) if file.schema.column(place).physical_type == "BYTE_ARRAY"]


class _Stored(NamedTuple):
    """A column: its number of values, what its pages unpack to, all of them and the largest, in bytes, and a bound of
    the letters of its texts."""

    values: int
    all_pages: int
    largest_page: int
    letters: int


def _stored(path: Path, file: pq.ParquetFile, error: type[RaysimError]) -> list[_Stored]:
    """Read the headers of all pages; returns what is stored of each column.

    Raises:
        RaysimError: an encoding does not tell how much it unpacks to.
        ValueError: the pages are others than the footer says.
    """
    with open(path, "rb") as content:
        groups = chunks(content)
        if any(len(group) != len(file.schema) for group in groups):
            raise ValueError("a group of rows has other columns than the table")
        return [
            _stored_column(path, file.schema.column(place), [group[place] for group in groups], content, error)
            for place in range(len(file.schema))
        ]


def _stored_column(
    path: Path, column: pq.ColumnSchema, of_column: Sequence[Chunk], content: BinaryIO, error: type[RaysimError]
) -> _Stored:
    sizes, letters = [0], 0
    for chunk in of_column:
        of_chunk = []
        for page in pages(content, chunk):
            if page.encoding is not None and page.encoding not in _ENCODINGS:
                name = _UNBOUND.get(page.encoding, f"number {page.encoding}")
                raise error(
                    f"{path}: the column {column.path!r:.100} has the encoding {name}, which does not tell how much it "
                    f"unpacks to: write the file again by pyarrow.parquet.write_table, which has another."
                )
            of_chunk.append(page.unpacked_bytes)
        sizes += of_chunk
        # No text is longer than what is stored of its column.
        letters += chunk.values * sum(of_chunk)
    is_text = column.physical_type == "BYTE_ARRAY"
    return _Stored(sum(chunk.values for chunk in of_column), sum(sizes), max(sizes), letters if is_text else 0)


def _text_bytes(path: Path, file: pq.ParquetFile) -> int:
    """Return the bytes of all texts; they are read in the form in which equal ones are there once."""
    paths = [file.schema.column(place).path for place in _texts(file)]
    total = 0
    with pq.ParquetFile(_place(path), page_checksum_verification=True, read_dictionary=paths) as coded:
        for group in range(coded.num_row_groups):
            for column in coded.read_row_group(group, columns=paths).columns:
                total += sum(unpacked.plain_bytes(chunk) for chunk in column.chunks)
    return total
