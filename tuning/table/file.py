"""Reads and writes a table as one Parquet file, whose metadata say of which experiment, space and clients it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysim import Experiment, ExperimentError
from raysim.run_folder.tables import column
from raysim.storage import parquet
from raysim.storage.atomic import write as write_file
from raysim.storage.reading import checked_object, parsing
from tuning import space as spaces
from tuning.errors import StudyError
from tuning.table.record import ACCURACIES, LOSSES, PublishedTable
from tuning.table.table_check import PLACES, check_columns, clients_of, seeds_of, size_of

KEY = b"raysim_table"
"""Of the metadata."""
FORMAT = 1


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
        "content of the data": table.content,
        "clients": {"names": list(table.clients.names), "examples": list(table.clients.examples)},
    }
    columns: dict[str, Any] = {"configuration": pa.array([place for place, _, _ in every], pa.int32())}
    for key in table.space.dimensions:
        of_all = column([values[key] for values in table.configurations])
        columns[key] = of_all.take(columns["configuration"])
    columns["seed"] = pa.array([seed for _, seed, _ in every], pa.int64())
    for name in dict.fromkeys(name for _, _, row in every for name in row):
        kind = pa.list_(pa.float32()) if name in (LOSSES, ACCURACIES) else None
        columns[name] = pa.array([row.get(name) for _, _, row in every], kind)
    found = pa.table(columns).replace_schema_metadata({KEY: json.dumps(about).encode()})
    write_file(path, lambda file: pq.write_table(found, file, compression="zstd"))


def read(path: Path) -> PublishedTable:
    """Read a table.

    Raises:
        StudyError: the file cannot be read, or is not such a table; names it.
    """
    try:
        return _read(path)
    except ExperimentError as error:
        raise StudyError(f"{path} is damaged: {error}") from error


def _read(path: Path) -> PublishedTable:
    found = parquet.read(path, StudyError)
    with parsing(path, "a table of `raysim table`", StudyError):
        about = checked_object(json.loads((pq.read_schema(path).metadata or {}).get(KEY, b"null")))
        if about.get("format") != FORMAT:
            raise ValueError(f"its format is {about.get('format')!r}, and this raysim reads {FORMAT}")
        space = spaces.parse(about["space"])
        clients, seeds, size = clients_of(about["clients"]), seeds_of(about["seeds"]), size_of(space)
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
        experiment = Experiment.model_validate(about["experiment"])
        return PublishedTable(experiment, space, seeds, str(about["content of the data"]), clients, rows)
