"""Reads and writes a table as one Parquet file, whose metadata say of which experiment, space and clients it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raysim import Experiment, ExperimentError
from raysim.run_folder.tables import column
from raysim.storage import parquet
from raysim.storage.atomic import write as write_file
from raysim.storage.reading import checked_object, parsing, regular
from raysim.storage.remote.uri import check_is_path
from tuning import space as spaces
from tuning.client_sums import weight_column
from tuning.errors import StudyError
from tuning.table.record import LISTS, PublishedTable
from tuning.table.table_check import PLACES, check_columns, clients_of, seeds_of, size_of, vary_of

KEY = b"raysim_table"
"""Of the metadata."""
FORMAT = 2
DIGEST = "digest"
"""Of all else, in the metadata."""


def published(experiment: Experiment) -> Experiment:
    """Return the experiment with the names of its data's files in place of their paths, which are of one machine."""
    told, kept = (record.get("data") or {} for record in (experiment.said(), experiment.determining()))
    return experiment.changed(
        {f"data.{key}": Path(str(value)).name for key, value in told.items() if key not in kept and value is not None}
    )


def write(table: PublishedTable, path: Path) -> None:
    """Write a table: a row for each configuration, seed and round."""
    every = [
        (place, seed, row)
        for place, runs in enumerate(table.rows)
        for seed, rows in zip(table.seeds, runs, strict=True)
        for row in rows
    ]
    about = {
        "format": FORMAT,
        "rows": len(every),
        "experiment": published(table.experiment).said(),
        "space": table.space.plain(),
        "seeds": list(table.seeds),
        "vary": None if table.vary is None else list(table.vary),
        "content of the data": table.content,
        "clients": {
            "names": list(table.clients.names),
            "examples": list(table.clients.examples),
            **{weight_column(figure): list(each) for figure, each in table.clients.weights.items()},
        },
    }
    columns: dict[str, Any] = {"configuration": pa.array([place for place, _, _ in every], pa.int32())}
    for key in table.space.dimensions:
        of_all = column([values[key] for values in table.configurations])
        columns[key] = of_all.take(columns["configuration"])
    columns["seed"] = pa.array([seed for _, seed, _ in every], pa.int64())
    for name in dict.fromkeys(name for _, _, row in every for name in row):
        kind = pa.list_(pa.float32()) if name in LISTS else None
        columns[name] = pa.array([row.get(name) for _, _, row in every], kind)
    content = pa.table(columns)
    about[DIGEST] = _digest(content, about)
    found = content.replace_schema_metadata({KEY: json.dumps(about).encode()})
    write_file(path, lambda file: pq.write_table(found, file, compression="zstd"))


def is_table(path: Path) -> bool:
    """Return whether there is a file that says that it is a table, whatever else it holds."""
    if not path.is_file():
        return False
    try:
        return KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


def _digest(content: pa.Table, about: Mapping[str, Any]) -> str:
    """Return the digest of a table's columns and of what is said about it: a file has none of its metadata."""
    found = hashlib.blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=16)
    for name, chunked in zip(content.column_names, content.columns, strict=True):
        column = pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)
        found.update(name.encode())
        if pa.types.is_list(column.type):
            found.update(pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False).tobytes())
            column = column.flatten()
        found.update(str(column.type).encode())
        found.update(column.is_valid().to_numpy(zero_copy_only=False).tobytes())
        if _is_plain(column.type):
            found.update(column.drop_null().to_numpy(zero_copy_only=False).tobytes())
        else:
            found.update(json.dumps(column.to_pylist()).encode())
    return found.hexdigest()


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def read(path: Path) -> PublishedTable:
    """Read a table.

    Raises:
        StudyError: the file cannot be read, or is not such a table; names it.
    """
    check_is_path(path, "A table (--table)", StudyError)
    try:
        return _read(path)
    except ExperimentError as error:
        raise StudyError(f"{path} is damaged: {error}") from error


def _read(path: Path) -> PublishedTable:
    regular(path, StudyError)
    with parsing(path, "a table of `raysim table`", StudyError):
        file = pq.read_metadata(path)
        about = checked_object(json.loads((file.metadata or {}).get(KEY, b"null")))
        if about.get("format") != FORMAT:
            raise ValueError(f"its format is {about.get('format')!r}, and this raysim reads {FORMAT}")
        space = spaces.parse(about["space"])
        clients, seeds, size = clients_of(about["clients"]), seeds_of(about["seeds"]), size_of(space)
        experiment = Experiment.model_validate(about["experiment"])
        # Before it is read: a small file may unpack to more rows than there is memory for.
        if file.num_rows > (most := size * len(seeds) * experiment.rounds):
            raise ValueError(f"it has {file.num_rows:,} rows, and its runs have {most:,} rounds")
    found = parquet.read(path, StudyError)
    with parsing(path, "a table of `raysim table`", StudyError):
        check_columns(found, space, size, seeds, clients)
        if about.get("rows", len(found)) != len(found):
            raise ValueError(f"it has {len(found):,} rows, and was written with {about['rows']:,}")
        rows: list[list[list[Mapping[str, Any]]]] = [[[] for _ in seeds] for _ in range(size)]
        kept = found.drop_columns([key for key in space.dimensions if key in found.column_names])
        for row in kept.to_pylist():
            place, seed = (row.pop(name) for name in PLACES)
            runs = rows[place][seeds.index(seed)]
            if row["round"] != len(runs):
                raise ValueError(f"configuration {place} has round {row['round']} where {len(runs)} belongs")
            runs.append(row)
        # Last, because the others say what is wrong.
        if about.pop(DIGEST, None) != _digest(found, about):
            raise ValueError("it is not as it was written: get the file again, or make the table again")
        content = str(about["content of the data"])
        return PublishedTable(experiment, space, seeds, content, clients, rows, vary_of(about.get("vary")))
