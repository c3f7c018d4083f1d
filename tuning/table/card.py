"""Writes the data card of a table: what it is, of what, how it was made, and what it is not for."""

from __future__ import annotations

import hashlib
import os
from importlib import metadata
from pathlib import Path

from raysim.config import toml_arrays
from raysim.config.counted import counted
from raysim.run_folder.files import check_is_no_record
from raysim.storage.atomic import write_text
from tuning.best_file import without_none
from tuning.errors import StudyError
from tuning.objective import divergence
from tuning.table import file
from tuning.table.record import PublishedTable, values_of
from tuning.writing import number

_COLUMNS = (
    ("`configuration`, and a column for each key of the space", "which configuration, and its values"),
    ("`seed`, `round`", "which run of it, and after which round, counted from 0"),
    ("`loss`, `accuracy`", "of the cohort as it trained"),
    ("`eval/...`", "of the model after the round, over all clients of a split"),
    ("`clients/loss`, `clients/accuracy`", "a list: of that model for each validation client, in the order below"),
    ("`clients`, `rejected`, `examples`", "whose updates were taken, whose were not, and what they trained on"),
    ("`bytes_down`, `bytes_up`, `simulated_time_s`", "what the round cost the simulated clients"),
)


MARK = ": a table for tuners"
"""How the first line of a card ends."""


def card_of(path: Path) -> Path:
    """Return the card of a table's file."""
    return path.with_suffix(".md")


def check_free(path: Path) -> None:
    """Refuse a table's file that would replace another file than a table, or whose card would replace another file.

    Raises:
        StudyError: says which.
        RunFolderError: it is a file that a run or a study records itself in.
    """
    if not file.is_table(path):
        check_is_no_record(path)
        if os.path.lexists(path):
            raise StudyError(f"{path} is there and is no table: give the table another file, or remove that one.")
    card = card_of(path)
    if card == path:
        raise StudyError(f"{path} is the name of a card, which stands beside its table: end the table's in .parquet.")
    if card.exists() and not (card.is_file() and card.read_bytes().partition(b"\n")[0].endswith(MARK.encode())):
        raise StudyError(f"{card}, where the table's card belongs, is another file: give the table another name.")


def write(table: PublishedTable, path: Path) -> None:
    """Write the card of a table that has been written to `path`."""
    write_text(card_of(path), text(table, path))


def text(table: PublishedTable, path: Path) -> str:
    """Return the card, in Markdown."""
    runs = [rows for of_one in table.rows for rows in of_one]
    diverged = sum(any(len(r) < table.experiment.rounds or divergence(r) for r in of_one) for of_one in table.rows)
    space = [f"| `{key}` | {', '.join(number(each) for each in values_of(table.space, key))} |"
             for key in table.space.dimensions]  # fmt: skip
    keys = [f"| {names} | {meaning} |" for names, meaning in _COLUMNS]
    clients = [f"{name} ({size})" for name, size in zip(table.clients.names, table.clients.examples, strict=True)]
    varying = []
    if table.vary is not None:
        varying = [f"| vary with the seed | {', '.join([*table.vary, 'draws of clients'])} |"]
    plain = without_none(file.published(table.experiment).said())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return "\n".join(
        [
            f"# {table.experiment.name}{MARK}",
            "",
            f"Every one of {counted(len(table.configurations), 'configuration')} of a grid was trained with "
            f"{counted(len(table.seeds), 'seed')} for {counted(table.experiment.rounds, 'round')}, and evaluated after "
            f"every round on each of {counted(len(clients), 'validation client')}: a tuner can be tried on it without "
            f"training (`raysim tune FILE --table`, `raysim tuners`).",
            "",
            "| | |",
            "| --- | --- |",
            f"| file | `{path.name}`, {sum(map(len, runs)):,} rows, sha256 `{digest}` |",
            f"| made by | raysim {metadata.version('raysim')}, torch {metadata.version('torch')}: `raysim table` |",
            f"| seeds | {', '.join(map(str, table.seeds))}: the same cohorts for every configuration |",
            *varying,
            f"| diverged | {diverged} configurations; their rows end with the round in which one seed did |",
            f"| data | fingerprint `{table.content}`; their licence is that of their source |",
            "",
            "## Space",
            "",
            "| key | values |",
            "| --- | --- |",
            *space,
            "",
            "## Columns",
            "",
            "| column | what |",
            "| --- | --- |",
            *keys,
            "",
            "## What it is not for",
            "",
            "No tuner saw the test split here, and a choice by the table says nothing of other data, other models or "
            "values that are not listed. Times of this machine are left out, because another one has others.",
            "",
            "## Validation clients",
            "",
            f"Name and examples, in the order of the lists: {', '.join(clients)}.",
            "",
            "## Experiment",
            "",
            "```toml",
            toml_arrays.dumps(plain).rstrip(),
            "```",
            "",
        ]
    )
