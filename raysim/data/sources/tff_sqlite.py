"""Reads TensorFlow Federated's SQLite: tables `examples` (split, client, message) and `client_metadata`."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from raysim.data.sources import tf_example
from raysim.data.sources.published import SourceFile
from raysim.data.sources.tf_example import Values
from raysim.errors import DataError
from raysim.storage.reading import parsing

_MAGIC, _HEADER_BYTES = b"SQLite format 3\0", 100

_EXPECTED = "an SQLite file with the tables examples and client_metadata"

PIECE = 4096
"""Number of a client's examples in memory at a time."""


class ClientExamples(NamedTuple):
    """Some of a client's examples, in the file's order: the features of each by name."""

    client: str
    examples: list[dict[str, Values]]


def ids(file: SourceFile, split: str) -> list[str]:
    """Return the clients of a split, in order of name."""
    query = "SELECT DISTINCT client_id FROM client_metadata WHERE split_name = ? ORDER BY client_id"
    with file.reading(_EXPECTED), closing(_connected(file)) as database:
        return [str(row[0]) for row in database.execute(query, (split,))]


def clients(file: SourceFile, split: str) -> Iterator[ClientExamples]:
    """Yield a split's examples in the order of `ids`, a client's in pieces of PIECE.

    Raises:
        DataError: another kind of file, or an invalid message; names the client.
    """
    # The published files index (split_name, client_id), which makes this order free.
    query = "SELECT client_id, serialized_example_proto FROM examples WHERE split_name = ? ORDER BY client_id, rowid"
    current, piece = "", list[dict[str, Values]]()
    with file.reading(_EXPECTED), closing(_connected(file)) as database:
        for client, message in database.execute(query, (split,)):
            if piece and (client != current or len(piece) == PIECE):
                yield ClientExamples(current, piece)
                piece = []
            current = str(client)
            with parsing(f"{file.path}, client {current!r}", "tf.train.Example", DataError, verdict=""):
                piece.append(tf_example.parse(message))
    if piece:
        yield ClientExamples(current, piece)


def _check_whole(file: SourceFile) -> None:
    """Raise DataError unless the file has its header's number of pages: SQLite reads a part without an error."""
    found = file.path.stat().st_size
    with file.path.open("rb") as opened:
        header = opened.read(_HEADER_BYTES)
    if len(header) == _HEADER_BYTES and header.startswith(_MAGIC):
        # The page's size, 1 standing for 65,536, and the number of pages, big-endian (the format's section 1.3).
        page_bytes, pages = struct.unpack_from(">H10xI", header, 16)
        expected = (65_536 if page_bytes == 1 else page_bytes) * pages
        if found < expected:
            raise DataError(f"{file.path}: expected {expected} bytes, as its header says, found {found}")


def _connected(file: SourceFile) -> sqlite3.Connection:
    _check_whole(file)
    return sqlite3.connect(f"{file.path.absolute().as_uri()}?mode=ro", uri=True)
