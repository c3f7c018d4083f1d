"""Writes tables as sealed Parquet files: raysim notices any damage, other programs that of a page.

Parquet's own checksums are those of pages. They leave out the footer, with the names and types of the columns, so the
whole file is sealed too (storage/sealed.py).
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.storage import sealed

_KEY = "raysim"


def write(content: pa.Table, file: Path) -> None:
    """Write a table in its place; callers write it aside."""
    sink = pa.BufferOutputStream()
    pq.write_table(content.replace_schema_metadata({_KEY: sealed.BLANK}), sink, write_page_checksum=True)
    # The footer, which holds the mark, comes after all texts of the table.
    sealed.write(file, sink.getvalue().to_pybytes(), last=True)
