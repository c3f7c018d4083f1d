"""Reads what a Parquet file says of its column chunks, and of the pages by which they are unpacked.

pyarrow tells the first too, but ends the process where a forged footer does not fit together. It tells nothing of the
pages, which need not be as the footer says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from types import MappingProxyType
from typing import BinaryIO, NamedTuple

from raysim.storage.thrift_compact import CompactReader, CutOffError, Struct, count, part, parts

_END = b"PAR1"

_DATA, _INDEX, _DICTIONARY, _DATA_2 = 5, 6, 7, 8
"""Fields of a page's header: one for each type of page."""

_OF_TYPE = MappingProxyType({0: _DATA, 1: _INDEX, 2: _DICTIONARY, 3: _DATA_2})

_ENCODING = MappingProxyType({_DATA: 2, _DICTIONARY: 2, _DATA_2: 4})
"""Where a page's own header names the encoding of its values; its number of values is always the first field."""


_MOST_HEADER_BYTES = (1 << 10, 1 << 16, 1 << 24)
"""Read at a time, until a header is whole; Arrow reads no longer ones."""


class Chunk(NamedTuple):
    """The values of a column in a group of rows, and where their pages lie."""

    values: int
    start: int
    length: int


class Page(NamedTuple):
    """What a page's header says. encoding: its number in the format; None of a page without values."""

    unpacked_bytes: int
    encoding: int | None
    values: int


def chunks(file: BinaryIO) -> list[list[Chunk]]:
    """Return the column chunks of each group of rows, by the file's footer.

    Raises:
        ValueError: it has none.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 8))
    tail = file.read(8)
    start = size - 8 - int.from_bytes(tail[:4], "little")
    if tail[4:] != _END or start < 0:
        raise ValueError("it has no footer")
    file.seek(start)
    footer = CompactReader(file.read(size - 8 - start)).struct()
    return [[_chunk(part(column, 3)) for column in parts(group, 1)] for group in parts(footer, 4)]


def _chunk(column: Struct) -> Chunk:
    start, dictionary = count(column, 9), count(column, 11, default=0)
    # Arrow goes by the same rule.
    return Chunk(count(column, 5), min(start, dictionary) if dictionary else start, count(column, 7))


def pages(file: BinaryIO, chunk: Chunk) -> Iterator[Page]:
    """Yield the pages of a column chunk, up to the one with its last value: readers go no further.

    Raises:
        ValueError: a header is none, a page leads out of the chunk, or the pages have another number of values.
    """
    place, end, seen = chunk.start, chunk.start + chunk.length, 0
    while seen < chunk.values:
        if place >= end:
            raise ValueError(f"the pages of a column have {seen:,} values, and {chunk.values:,} are said to be there")
        header, length = _header(file, place, end)
        page = _page(header)
        place += length + count(header, 3)
        seen += page.values
        if place > end or seen > chunk.values:
            raise ValueError("a page has more than its column is said to have")
        yield page


def _header(file: BinaryIO, place: int, end: int) -> tuple[Struct, int]:
    """Return a page's header, and its length."""
    for most in _MOST_HEADER_BYTES:
        file.seek(place)
        reader = CompactReader(file.read(min(most, end - place)))
        try:
            return reader.struct(), reader.place
        except CutOffError:
            # Statistics may hold long texts.
            if most >= end - place:
                raise
    raise ValueError(f"a page's header has more than {most:,} bytes")


def _page(header: Struct) -> Page:
    kind, unpacked = count(header, 1), count(header, 2)
    if kind not in _OF_TYPE:
        raise ValueError(f"a page is of the unknown type {kind}")
    field = _OF_TYPE[kind]
    own = part(header, field)
    if field == _INDEX:
        return Page(unpacked, None, 0)
    encoding, values = count(own, _ENCODING[field]), count(own, 1)
    if field != _DICTIONARY:
        return Page(unpacked, encoding, values)
    if values > unpacked:
        raise ValueError("a dictionary has more values than bytes")
    return Page(unpacked, encoding, 0)
