"""Writes tables as sealed Parquet files: raysim notices any damage, other programs that of a page.

Parquet's own checksums are those of pages. They leave out the footer, with the names and types of the columns, so the
whole file is sealed too (storage/sealed.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.storage import sealed

_KEY, _OWNER = "raysim", "raysim_run"


def write(content: pa.Table, file: Path, owner: str = "", about: Mapping[str, str] = MappingProxyType({})) -> None:
    """Write a table in its place; callers write it aside.

    Args:
        owner: says whose it is; "": nobody's. about: what the file's metadata say besides.
    """
    sink = pa.BufferOutputStream()
    metadata = {**about, **({_OWNER: owner} if owner else {}), _KEY: sealed.BLANK}
    pq.write_table(content.replace_schema_metadata(metadata), sink, write_page_checksum=True)
    # The footer, which holds the mark, comes after all texts of the table.
    sealed.write(file, sink.getvalue().to_pybytes(), last=True)


def owner(file: Path) -> str:
    """Return whose a table is, which was read without an error; "" if it does not say."""
    found = (pq.read_metadata(file.absolute()).metadata or {}).get(_OWNER.encode(), b"")
    return str(found.decode("utf-8", "replace"))
