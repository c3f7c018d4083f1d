"""Reads the tables of evaluated clients: a row for each client and evaluation."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

import pyarrow as pa

from raysim.errors import RunFolderError
from raysim.run_folder import files
from raysim.run_folder.checked_tables import CLIENT_SCHEMA, checked_clients
from raysim.run_folder.run_table import read_table
from raysim.storage.reading import parsing


def read_clients(path: Path) -> pa.Table:
    """Read one row per client and evaluation: round, split, client, examples, loss, accuracy, user-defined metrics.

    Rows with the split "fine_tuning/<split>" have `tuned_loss` and `tuned_accuracy`, after fine-tuning. Those with the
    split "personal/<split>" are of personal models, and have `global_loss` and `global_accuracy`, of the model of all.
    Both have the client's `training_examples`, and `label_similarity`, of its labels to those of all training clients;
    the latter also `seen`, whether the client took part.

    Raises:
        RunFolderError: a file is damaged.
    """
    parts = [clients_after(path, index) for index in files.client_files(path)]
    with parsing(path / "clients", "files with the same columns", RunFolderError):
        return pa.concat_tables(parts, promote_options="default") if parts else CLIENT_SCHEMA.empty_table()


def newest_clients(path: Path) -> pa.Table:
    """Read the rows of the newest evaluation, like `read_clients`.

    Raises:
        RunFolderError: its file is damaged.
    """
    tables = files.client_files(path)
    return clients_after(path, max(tables)) if tables else CLIENT_SCHEMA.empty_table()


def clients_after(path: Path, index: int) -> pa.Table:
    """Read the rows of the evaluation after round `index`, like `read_clients`."""
    file = files.client_file(path, index)
    return checked_clients(read_table(path, file), file, index)


def client_schema(metrics: Iterable[str], others: Collection[str] = ()) -> pa.Schema:
    """Return the columns of rows with these metrics; with models of clients' own, also figures under other names.

    `others`: the beginnings of these names, such as "tuned_".
    """
    names = [f"{other}{metric}" for metric in metrics for other in ("", *others)]
    figures = [f"{other}{figure}" for other in others for figure in ("loss", "accuracy")]
    facts = [("training_examples", pa.int64()), ("label_similarity", pa.float64()), ("seen", pa.bool_())]
    fields = [*CLIENT_SCHEMA, *(pa.field(name, pa.float64()) for name in (*figures, *names))]
    fields += [pa.field(name, kind) for name, kind in (facts if others else [])]
    return pa.schema(list({field.name: field for field in fields}.values()))
