"""Reads user-defined tables: Arrow or Parquet files with a column of client ids."""

from __future__ import annotations

import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field as Key
from pydantic import model_validator

from raysim.config import messages
from raysim.config.section import Section
from raysim.config.values import FilePath, Name, Real, Width
from raysim.data import exact32, targets
from raysim.data.checksums import of_file
from raysim.data.field import ARRAYS, OF_ARRAYS, OF_CSV, OF_TEXTS, OF_TEXTS_IN_X, Field
from raysim.data.populated import Populated
from raysim.data.source import ClientRows, Population
from raysim.data.sources.published import SourceFile
from raysim.errors import DataError
from raysim.storage import arrow_file, atomic, disk, parquet, unpacked
from raysim.storage.cache import cache_root, hasher
from raysim.storage.inside import in_cache, inside
from raysim.storage.nearby import nearest
from raysim.storage.remote.remote import Remote
from raysim.storage.remote.uri import uri_of

log = logging.getLogger("raysim")

WHOLE = f"a whole .parquet, .arrow or .feather file ({OF_CSV})"

_SHOWN = 50
"""Columns that a message lists at most."""

SPLITS = ("train", "validation", "test")


class Table(Populated, Section):
    """Files of one table per split; every value of the client column is a client, in order of the values.

    Numbers, and lists of numbers of one length, are used unchanged. x may be several columns of numbers, which are
    joined as float32.
    """

    name: Literal["arrow"] = "arrow"
    root: FilePath | None = Key(
        None, description="Folder of train, validation and test, or its URI. Absent: the working directory."
    )
    train: FilePath = Key(description=".parquet, .arrow or .feather file of the training examples.")
    validation: FilePath | None = Key(None, description="Likewise of the validation examples. Absent: none.")
    test: FilePath | None = Key(None, description="Likewise of the test examples. Absent: none.")
    client: Name = Key("client", description="Column of client ids: texts or integers, no nulls.")
    x: tuple[Name, ...] = Key(("x",), max_length=10_000, description="Column of inputs, or several.")
    y: Name = Key("y", description="Column of targets; integers are labels, floating-point numbers make a regression.")
    shape: tuple[Width, ...] | None = Key(
        None,
        max_length=8,
        description="Shape of one example, where x is one column of flat lists. Absent: as the lists are.",
    )
    scale: Real = Key(1.0, description="Factor by which the values of x are multiplied.")
    classes: Width | None = Key(
        None,
        description="Number of classes; labels are in 0..classes - 1. Absent: one more than the largest label.",
    )

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        # One column as both is an autoencoder's.
        if len(self.x) > 1 and self.y in self.x:
            raise ValueError(f"y = {self.y!r} is among the columns of x: a model would read the target from its input")
        if twice := [name for name, times in Counter(self.x).items() if times > 1]:
            raise ValueError(f"x must name each column once, but names {', '.join(map(repr, twice))} several times")
        return self


def open_source(section: Table) -> Population:
    """Read the tables' heads and the labels' range.

    Raises:
        DataError: a file, a column or a value does not fit; names it.
    """
    named = {"train": section.train, "validation": section.validation, "test": section.test}
    uri = uri_of(section.root or ".")
    if uri is not None:
        folder = _fetched(uri, [name for name in named.values() if name is not None])
    else:
        folder = Path(section.root or ".").expanduser()
    tables = {split: _ClientTable(section, folder / name) for split, name in named.items() if name is not None}
    train = tables["train"]
    x, y = train.x.field, train.y.field
    for table in tables.values():
        table.check_like(x, y)
    if y.is_floating and section.classes is not None:
        raise DataError(
            f"{train.path}: data.classes = {section.classes} counts labels, but the column {section.y!r} is of "
            f"{y.dtype}, which makes this a regression: class labels are integers"
        )
    largest = max(table.largest_label() for table in tables.values()) if not y.is_floating else None
    num_classes = None if largest is None else section.classes or largest + 1
    targets.warn([table.y.rows for table in tables.values()], has_classes=section.classes is not None)
    digests = {split: table.digest for split, table in tables.items()}

    def stream() -> Iterator[ClientRows]:
        for split, table in tables.items():
            yield from table.stream(split)

    x = Field(section.shape or x.shape, x.dtype, scale=section.scale)
    address = {"name": "arrow", "files": digests}
    return Population(address, x, y, num_classes, train.ids, stream, tuple(tables))


def _check_there(path: Path, table: pa.Table, column: str) -> None:
    names = table.column_names
    if column not in names:
        shown = f"{', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"
        raise DataError(
            f"{path}: expected the column {column!r}, found {shown}{messages.nearest(column, names)}; data.client, x "
            f"and y name the columns"
        )
    if (times := names.count(column)) > 1:
        raise DataError(f"{path}: expected one column {column!r}, found {times}: give them names of their own")


class _Column:
    """Numbers of one dtype, (rows, *field.shape)."""

    def __init__(self, path: Path, table: pa.Table, name: str, of_texts: str) -> None:
        self.where = f"{path}, column {name!r}"
        _check_there(path, table, name)
        column = table.column(name).combine_chunks()
        self._check_nulls(column)
        if pa.types.is_fixed_size_list(column.type):
            values = column.flatten()
            width: tuple[int, ...] = (column.type.list_size,)
        elif pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
            values, width = column.flatten(), (self._width(column),)
        else:
            values, width = column, ()
        self._check_nulls(values)
        try:
            numbers = values.to_numpy(zero_copy_only=False)
            self.field = Field(width, numbers.dtype.name)
        except (pa.ArrowException, DataError) as error:
            advice = _advice(values, width, of_texts)
            raise DataError(
                f"{self.where}: expected numbers or lists of them, found {column.type}: {advice}"
            ) from error
        _check_finite(self.where, numbers)
        self.rows: npt.NDArray[Any] = numbers.reshape(len(column), *width)

    def _check_nulls(self, column: Any) -> None:
        if column.null_count:
            row = pc.index(pc.is_null(column), pa.scalar(True)).as_py()
            raise DataError(f"{self.where}: expected no nulls, found {column.null_count}, the first at value {row}")

    def _width(self, column: Any) -> int:
        lengths = pc.unique(pc.list_value_length(column)).to_pylist()
        if len(lengths) != 1:
            raise DataError(f"{self.where}: expected lists of one length, found {sorted(lengths)[:5]}")
        return int(lengths[0])


class _ClientTable:
    """One split's table, columns in memory, by client."""

    def __init__(self, section: Table, path: Path) -> None:
        self.path = path
        _check_is_table(path)
        # Before the content is read: see `digested`.
        self.digest = SourceFile(path).digest
        table = _plain(path, _as_written(path))
        if not table.num_rows:
            raise DataError(f"{path}: expected rows, found none: a split without examples is left out of [data]")
        _check_there(path, table, section.client)
        clients = table.column(section.client)
        if clients.null_count:
            row = pc.index(pc.is_null(clients), pa.scalar(True)).as_py()
            raise DataError(
                f"{path}, column {section.client!r}: every row must say whose it is, "
                f"but {clients.null_count} are null, the first in row {row}"
            )
        if not (pa.types.is_integer(clients.type) or _is_text(clients.type)):
            raise DataError(f"{path}, column {section.client!r}: expected texts or integers, found {clients.type}")
        self._ids, self._of_row = _coded(clients)
        xs = [_Column(path, table, name, OF_TEXTS_IN_X) for name in section.x]
        self.x = xs[0] if len(xs) == 1 else _side_by_side(xs)
        self.y = _Column(path, table, section.y, OF_TEXTS)
        for column in (self.x, self.y):
            if column.rows.dtype == np.float64:
                _as_float32(column, "which modules and losses take")
        if section.scale != 1 and self.x.rows.dtype.kind in "iu":
            _as_float32(self.x, "which data.scale multiplies")
        self._shape = section.shape
        if section.shape is not None and math.prod(section.shape) != self.x.field.values:
            raise DataError(
                f"{path}: data.shape = {section.shape} must have as many values as x, {self.x.field.values}"
            )

    def check_like(self, x: Field, y: Field) -> None:
        """Raise DataError unless the columns match those of the training table."""
        for name, mine, theirs in (("x", self.x.field, x), ("y", self.y.field, y)):
            if mine != theirs:
                raise DataError(f"{self.path}: expected {name} as in the training table, {theirs}, found {mine}")

    def largest_label(self) -> int:
        """Return the largest label of all rows; DataError if one is negative."""
        labels = self.y.rows
        if labels.size and labels.min() < 0:
            raise DataError(f"{self.path}: expected labels of at least 0, found {labels.min()}")
        largest = int(labels.max()) if labels.size else 0
        targets.check_largest(largest, self.y.where)
        return largest

    def ids(self) -> list[str]:
        """Return the clients, in order of their values."""
        return self._ids

    def stream(self, split: str) -> Iterator[ClientRows]:
        """Yield rows by client; a client's rows are in the table's order."""
        order = np.argsort(self._of_row, kind="stable")
        ends = np.cumsum(np.bincount(self._of_row, minlength=len(self._ids)))
        for name, rows in zip(self.ids(), np.split(order, ends[:-1]), strict=True):
            x = self.x.rows[rows]
            yield ClientRows(split, name, x if self._shape is None else x.reshape(-1, *self._shape), self.y.rows[rows])


def _advice(values: Any, width: tuple[int, ...], of_texts: str) -> str:
    """Return what to do about values that are no numbers; `of_texts`: where they are texts."""
    if width == (0,):
        return "the lists are empty"
    if _is_text(values.type) or pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
        return of_texts
    if pa.types.is_nested(values.type) or isinstance(values.type, pa.BaseExtensionType):
        return "write one list of numbers in each row, and data.shape for the shape of an example"
    return "dates, times, decimals and the like are made numbers first, such as days since a date"


def _check_finite(where: str, values: npt.NDArray[Any]) -> None:
    if values.dtype.kind == "f" and not (finite := np.isfinite(values)).all():
        places = np.flatnonzero(~finite)
        raise DataError(
            f"{where}: expected finite numbers, but {len(places)} {'is' if len(places) == 1 else 'are'} not: "
            f"{values[places[0]]} at value {places[0]}; fill them, or leave these rows out"
        )


def _as_float32(column: _Column, why: str) -> npt.NDArray[np.float32]:
    """Return a column's numbers as float32; of whole numbers that change by this, warn. `why` they are converted."""
    with np.errstate(over="ignore"):
        found = column.rows.astype(np.float32)
    _check_finite(f"{column.where}, as float32", found)
    if not found.any() and column.rows.any():
        log.warning(
            "%s: all numbers are 0 as float32, %s, and are not 0 in the file: multiply them before they are written",
            column.where,
            why,
        )
    if changed := int(exact32.changed(column.rows).sum()):
        log.warning(
            "%s: %d whole numbers are not exact as float32, %s: ids and times of this size lose their last digits",
            column.where,
            changed,
            why,
        )
    return found


def _side_by_side(columns: list[_Column]) -> _Column:
    for column in columns:
        if column.field.shape:
            raise DataError(
                f"{column.where}: expected a number in each row, as x has several columns, found lists of "
                f"{column.field.values}: data.x may name one column of lists alone"
            )
    joined = columns[0]
    joined.rows = np.stack([_as_float32(column, "which x of several columns is") for column in columns], axis=1)
    joined.field = Field((len(columns),), "float32")
    return joined


def _coded(clients: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the different ids, in order of their values, and the place of each row's among them.

    Not np.unique: its texts are as wide as the longest, in every row, and end before a NUL.
    """
    values = clients.unique()
    order = pc.sort_indices(values)
    ranked = values.take(order)
    places = pc.index_in(clients, value_set=ranked).to_numpy()
    return [str(value) for value in ranked.to_pylist()], places.astype(np.int64)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _check_is_table(path: Path) -> None:
    if not os.path.lexists(path):
        raise DataError(f"{path} is missing{nearest(path)}: data.train, validation and test name the tables' files")
    if path.suffix in ARRAYS:
        raise DataError(f"{path} holds arrays, but data.train, validation and test are tables: {OF_ARRAYS}")


def _plain(path: Path, table: pa.Table) -> pa.Table:
    """Return the table with values in place of codes: pandas writes categories as dictionaries."""
    for place, field in enumerate(table.schema):
        is_coded = pa.types.is_dictionary(field.type)
        if pa.types.is_run_end_encoded(field.type) or (is_coded and pa.types.is_nested(field.type.value_type)):
            raise DataError(f"{path}, column {field.name!r}: expected a value in each row, found {field.type}")
        kind = field.type.value_type if is_coded else field.type
        kind = pa.string() if kind == pa.string_view() else kind
        if kind != field.type:
            column = table.column(place)
            unpacked.check(path, sum(map(unpacked.plain_bytes, column.chunks)), DataError)
            table = table.set_column(place, field.name, column.cast(kind))
    return table


def _as_written(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return parquet.read(path, DataError)
    with arrow_file.opened(path, DataError, expected=WHOLE, verdict="") as reader, SourceFile(path).reading(WHOLE):
        found = reader.read_all()
        found.validate(full=True)
        return found


def _fetched(uri: str, names: Iterable[str]) -> Path:
    """Fetch the URI's files that have changed, there or here, into this machine's cache; return the folder.

    Raises:
        DataError: one of the files is missing, or changes meanwhile.
        DiskError: this machine's cache cannot be written to.
        RemoteError: nothing answers.
    """
    remote, digest = Remote(uri), hasher()
    digest.update(remote.uri.encode())
    folder = in_cache(cache_root() / "files" / digest.hexdigest(), DataError)
    for name in names:
        stamp, target = remote.stamp(name), inside(folder, name, "data.train, validation or test", DataError)
        if stamp is None:
            remote.check()
            raise DataError(f"{remote.uri}/{name} is missing: data.root names the folder of the files")
        known = target.with_name(f".{target.name}.stamp")
        # A pipe in place of a file would be waited for.
        if not (target.is_file() and known.is_file() and known.read_bytes() == _stamped(stamp, target)):
            disk.make_folder(target.parent)
            with atomic.aside(target) as aside:
                with aside.open("wb") as file:
                    file.writelines(remote.read(name))
                if remote.stamp(name) != stamp:
                    raise DataError(
                        f"{remote.uri}/{name} changed while it was read: try again when nothing writes to it"
                    )
                # Another process may do the same; the last write has the URI's present content.
                known.unlink(missing_ok=True)
            with atomic.aside(known) as aside:
                aside.write_bytes(_stamped(stamp, target))
    return folder


def _stamped(stamp: str, copy: Path) -> bytes:
    """Return what is known of a copy: a damaged one has another checksum, and is fetched again."""
    return f"{stamp} {of_file(copy):08x}".encode()
