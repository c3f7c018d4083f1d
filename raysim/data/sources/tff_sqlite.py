"""Reads TensorFlow Federated's SQLite: tables `examples` (split, client, message) and `client_metadata`."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from raysim.data.sources import tf_example
from raysim.data.sources.published import SourceFile
from raysim.data.sources.tf_example import Values
from raysim.errors import DataError
from raysim.storage.reading import parsing

_MAGIC, _HEADER_BYTES = b"SQLite format 3\0", 100

_TABLES = ("examples", "client_metadata")

_EXPECTED = "an SQLite file with the tables examples and client_metadata"

_OF_SPLIT = "split_name = ? COLLATE BINARY ORDER BY client_id COLLATE BINARY"
"""A table may say that other texts are equal, or in another order."""

_LOGS = ("-wal", "-journal")

_HIDDEN = 6
"""Place of a column's kind among what SQLite tells of it; 0: a column as any other."""

_STEPS_BETWEEN = 1_000_000
_STEPS_AT_LEAST = 50_000_000
_STEPS_A_BYTE = 100
"""Of SQLite's own machine, whose statements take some 30 for each row: a forged file can have rows without end."""

PIECE = 4096
"""Number of a client's examples in memory at a time."""


class ClientExamples(NamedTuple):
    """Some of a client's examples, in the file's order: the features of each by name."""

    client: str
    examples: list[dict[str, Values]]


def check_splits(file: SourceFile, splits: Collection[str]) -> None:
    """Raise DataError if the file has rows of another split: nothing would read them."""
    names = sorted(splits)
    # Ranges between the names, which the published files' index finds at once.
    between = " OR ".join("split_name > ? COLLATE BINARY AND split_name < ? COLLATE BINARY" for _ in names[1:])
    other = f"split_name < ? COLLATE BINARY OR {between} OR split_name > ? COLLATE BINARY"
    bounds = [names[0], *(name for pair in pairwise(names) for name in pair), names[-1]]
    with _opened(file) as database:
        for table in _TABLES:
            found = database.execute(f"SELECT split_name FROM {table} WHERE {other} LIMIT 1", bounds).fetchone()
            if found is not None:
                raise DataError(
                    f"{file.path}: expected the splits {', '.join(splits)} in {table}, found {found[0]!r:.40}"
                )


def ids(file: SourceFile, split: str) -> list[str]:
    """Return the clients of a split, in order of name."""
    with _opened(file) as database:
        return list(_sizes(file, database, split))


def clients(file: SourceFile, split: str) -> Iterator[ClientExamples]:
    """Yield a split's examples in the order of `ids`, a client's in pieces of PIECE.

    Raises:
        DataError: another kind of file, an invalid message, or a client with more or fewer examples than the file says
            that it has; names the client.
    """
    # The published files index (split_name, client_id), which makes this order free.
    query = f"SELECT client_id, serialized_example_proto FROM examples WHERE {_OF_SPLIT}, rowid"
    current, piece = "", list[dict[str, Values]]()
    found = Counter[str]()
    with _opened(file) as database:
        sizes = _sizes(file, database, split)
        for client, message in database.execute(query, (split,)):
            if piece and (client != current or len(piece) == PIECE):
                yield ClientExamples(current, piece)
                piece = []
            current = _checked_id(file, split, client)
            found[current] += 1
            with parsing(f"{file.path}, client {current!r}", "tf.train.Example", DataError, verdict=""):
                piece.append(tf_example.parse(message))
    for client in (*sizes, *found):
        if (expected := sizes.get(client, 0)) != found[client]:
            raise DataError(
                f"{file.path}, client {client!r} of split {split!r}: expected {expected} examples, as client_metadata "
                f"says, found {found[client]}: rows were lost or added. Restore the file from a copy."
            )
    if piece:
        yield ClientExamples(current, piece)


def _sizes(file: SourceFile, database: sqlite3.Connection, split: str) -> dict[str, int]:
    """Return the number of examples of each client of a split, in order of name."""
    query = f"SELECT client_id, num_examples FROM client_metadata WHERE {_OF_SPLIT}"
    found = dict[str, int]()
    for client, number in database.execute(query, (split,)):
        name = _checked_id(file, split, client)
        if not isinstance(number, int) or found.setdefault(name, number) != number:
            raise DataError(
                f"{file.path}, client {name!r} of split {split!r}: expected a number of examples in client_metadata, "
                f"found {number!r:.40}"
            )
    return found


def _checked_id(file: SourceFile, split: str, client: object) -> str:
    """Return a client's id; DataError if it is no text: 1 and "1", or b"a" and "a", are clients that differ."""
    if not isinstance(client, str):
        raise DataError(f"{file.path}, split {split!r}: expected a text as client_id, found {client!r:.40}")
    return client


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


@contextmanager
def _opened(file: SourceFile) -> Iterator[sqlite3.Connection]:
    """Open the file for reading: itself alone, and without a lock or another file beside it.

    Raises:
        DataError: it is another kind of file, has a log beside it, or makes SQLite work without an end.
    """
    for log in (Path(f"{file.path}{end}") for end in _LOGS):
        if os.path.lexists(log):
            raise DataError(
                f"{file.path} has a log beside it, {log.name}, whose rows are not in the file yet. End the program "
                f"that writes to it, and run: sqlite3 {file.path.name} 'PRAGMA journal_mode = DELETE'"
            )
    _check_whole(file)
    left = _STEPS_AT_LEAST + _STEPS_A_BYTE * file.path.stat().st_size

    def is_over() -> bool:
        # Called by SQLite as it works, so that signals arrive, too.
        nonlocal left
        left -= _STEPS_BETWEEN
        return left < 0

    with (
        file.reading(_EXPECTED),
        closing(sqlite3.connect(f"{file.path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)) as database,
    ):
        database.set_progress_handler(is_over, _STEPS_BETWEEN)
        try:
            _check_tables(file, database)
            yield database
        except sqlite3.OperationalError:
            if left < 0:
                raise DataError(f"{file.path} is damaged: its tables have more rows than a file of its size") from None
            raise


def _check_tables(file: SourceFile, database: sqlite3.Connection) -> None:
    """Raise DataError unless the tables are plain ones: to read a view or a generated column can take any time."""
    # No value is longer than the file.
    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, file.path.stat().st_size)
    database.execute("PRAGMA trusted_schema = OFF")
    for name in _TABLES:
        found = database.execute("SELECT type, sql FROM sqlite_master WHERE name = ?", (name,)).fetchone()
        if found is None or found[0] != "table" or not str(found[1]).upper().startswith("CREATE TABLE"):
            raise DataError(f"{file.path}: expected a table {name}, found {_called(found)}")
        # In SQLite's order, texts are between numbers and blobs.
        odd = f"SELECT split_name FROM {name} WHERE split_name < '' OR split_name >= x'' OR split_name IS NULL LIMIT 1"
        if (other := database.execute(odd).fetchone()) is not None:
            raise DataError(f"{file.path}: expected texts as {name}.split_name, found {other[0]!r:.40}")
        if made := [row[1] for row in database.execute(f"PRAGMA table_xinfo({name})") if row[_HIDDEN]]:
            raise DataError(
                f"{file.path}: expected columns with values of their own, but {name}.{made[0]} is generated"
            )


def _called(found: tuple[object, object] | None) -> str:
    return "none" if found is None else "a virtual one" if found[0] == "table" else f"a {found[0]!s:.20}"
