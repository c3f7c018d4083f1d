"""Reads the tables of evaluated clients: a row for each client and evaluation, with the columns that raysim writes."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from functools import reduce
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from raysim.errors import RunFolderError
from raysim.experiment.stop import EVALUATIONS
from raysim.run_folder import files
from raysim.run_folder.run_table import is_of_figures, read_table
from raysim.storage.reading import parsing

log = logging.getLogger("raysim")

CLIENT_SCHEMA = pa.schema(
    [
        ("round", pa.int64()),
        ("split", pa.string()),
        ("client", pa.string()),
        ("examples", pa.int64()),
        ("loss", pa.float64()),
        ("accuracy", pa.float64()),
        ("tuned_loss", pa.float64()),
        ("tuned_accuracy", pa.float64()),
    ]
)
"""The columns of every row of evaluated clients; those of user-defined metrics follow."""

_NEVER_NULL = ("round", "split", "client", "examples")


def read_clients(path: Path) -> pa.Table:
    """Read one row per client and evaluation: round, split, client, examples, loss, accuracy, user-defined metrics.

    Rows with the split "fine_tuning/<split>" have `tuned_loss` and `tuned_accuracy`, after fine-tuning. Those with the
    split "personal/<split>" are of personal models, and have `global_loss` and `global_accuracy`, of the model of all.
    Both have the client's `training_examples`, and `label_similarity`, of its labels to those of all training clients;
    the latter also `seen`, whether the client took part. `loss_weight` and `accuracy_weight` are what the client weighs
    in the split's figure, where that is not its `examples` (docs/algorithms.md, Padding).

    Raises:
        RunFolderError: a file is damaged.
    """
    parts = [clients_after(path, index) for index in files.client_files(path)]
    with parsing(path / "clients", "files with the same columns", RunFolderError):
        return pa.concat_tables(parts, promote_options="default") if parts else CLIENT_SCHEMA.empty_table()


def newest_clients(path: Path, rounds: pa.Table | None = None) -> pa.Table:
    """Read the rows of the newest evaluation, like `read_clients`; none if there is no table.

    `rounds`: the run's, read before. None: the newest table that there is will do.

    Raises:
        RunFolderError: its file is damaged, or lost, while an older evaluation has its table and `rounds` a newer one.
    """
    tables = files.client_files(path)
    if not tables:
        return CLIENT_SCHEMA.empty_table()
    evaluated = [] if rounds is None else evaluated_rounds(rounds)
    if evaluated and evaluated[-1] > max(tables):
        raise RunFolderError(
            f"{files.client_file(path, evaluated[-1])} is lost, whose evaluation {files.ROUNDS} has: put the file back."
        )
    return clients_after(path, max(tables))


def evaluated_rounds(rounds: pa.Table) -> list[int]:
    """Return the rounds after which the model was evaluated, in order."""
    figures = [rounds[name] for name in rounds.column_names if name.startswith(EVALUATIONS)]
    was_evaluated = [pc.is_valid(column) for column in figures]
    if not was_evaluated:
        return []
    found: list[int] = rounds["round"].filter(reduce(pc.or_, was_evaluated)).to_pylist()
    return found


def clients_after(path: Path, index: int) -> pa.Table:
    """Read the rows of the evaluation after round `index`, like `read_clients`."""
    file = files.client_file(path, index)
    return _checked(read_table(path, file), file, index)


def client_schema(metrics: Iterable[str], others: Collection[str] = (), weights: Iterable[str] = ()) -> pa.Schema:
    """Return the columns of rows with these metrics; with models of clients' own, also figures under other names.

    `others`: the beginnings of these names, such as "tuned_". `weights`: further columns, of what clients weigh.
    """
    names = [f"{other}{metric}" for metric in metrics for other in ("", *others)]
    figures = [f"{other}{figure}" for other in others for figure in ("loss", "accuracy")]
    facts = [("training_examples", pa.int64()), ("label_similarity", pa.float64()), ("seen", pa.bool_())]
    fields = [*CLIENT_SCHEMA, *(pa.field(name, pa.float64()) for name in (*figures, *names))]
    fields += [pa.field(name, kind) for name, kind in (facts if others else [])]
    fields += [pa.field(name, pa.float64()) for name in weights]
    return pa.schema(list({field.name: field for field in fields}.values()))


def warn_of_lost_clients(path: Path, rounds: pa.Table) -> None:
    """Warn of rounds whose row has an evaluation, but which have no table of clients: no other number needs it.

    Without a word, the clients' figures would lack these rounds. `rounds`: the run's, read before: a table is written
    before its round's row.
    """
    found = files.client_files(path)
    if lost := [index for index in evaluated_rounds(rounds) if index not in found]:
        named = ", ".join(map(str, lost[:20])) + (", ..." if len(lost) > 20 else "")
        log.warning(
            "%s is lost: the run's figures by client lack the evaluations after these rounds, which %s has: %s. Put "
            "back what was in %s to have them",
            files.client_file(path, lost[0]),
            files.ROUNDS,
            named,
            path / "clients",
        )


def _checked(found: pa.Table, file: Path, index: int) -> pa.Table:
    """Return a table of the clients evaluated after round `index`, whose columns are those that raysim writes.

    Raises:
        RunFolderError: a column is missing, or holds something else; or the rows are of another round.
    """
    for field in CLIENT_SCHEMA:
        if field.name not in found.column_names:
            if field.name.startswith("tuned_"):
                continue
            raise RunFolderError(f"{file} is damaged: expected the column {field.name!r}, found none of that name.")
        kind = found.schema.field(field.name).type
        if kind != field.type and not (field.name not in _NEVER_NULL and pa.types.is_null(kind)):
            raise RunFolderError(f"{file} is damaged: expected {field.type} in column {field.name!r}, found {kind}.")
    for name in _NEVER_NULL:
        if found[name].null_count:
            raise RunFolderError(f"{file} is damaged: expected a value in every row of column {name!r}.")
    for field in found.schema:
        if field.name not in CLIENT_SCHEMA.names and not is_of_figures(field.type):
            raise RunFolderError(f"{file} is damaged: expected figures in column {field.name!r}, found {field.type}.")
    if other := set(found["round"].to_pylist()) - {index}:
        raise RunFolderError(
            f"{file} must have rows of round {index}, as its name says, but has rows of round {min(other)}: put back "
            f"the file that was there, or start afresh (--overwrite, overwrite=True)."
        )
    return found
