"""Says in which splits the data of a folder's run were others, as far as the folder tells, and why they may be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from raysim.data import FederatedDataset, Split
from raysim.errors import DataError
from raysim.run_folder import client_table, experiment_record
from raysim.run_folder.passed_parts import Passed


def differing(path: Path, dataset: FederatedDataset, passed: Passed) -> str | None:
    """Return how the data differ from those of the folder's run, and the likely cause; None if they are the same.

    A folder has one fingerprint of all data. Beside it, it knows the number of training clients, and which clients
    were scored on how many examples.

    Args:
        path: of the run.
        dataset: the data that are there now.
        passed: what the script passes now.
    """
    before = experiment_record.stored_data_fingerprint(path)
    if before is None or before == dataset.fingerprint:
        return None
    found = list(_by_split(path, dataset)) or ["clients and sizes are those that it knows of, so the examples differ"]
    return f"its data were others: {'; '.join(found)}. {_cause(path, passed)}"


def _by_split(path: Path, dataset: FederatedDataset) -> Iterator[str]:
    had, clients = experiment_record.stored_training_clients(path), len(dataset.train)
    if had not in (None, clients):
        yield f"train had {had:,} clients, and has {clients:,}"
    if experiment_record.stored_experiment(path).evaluation.examples != "all":
        # Rows have as many examples as were drawn.
        return
    names = set[str]()
    scored = client_table.newest_clients(path).select(["split", "client", "examples"]).to_pylist()
    for row in scored:
        name = row["split"]
        if name in names or "/" in name:
            continue
        split = dataset.splits.get(name)
        if split is None:
            names.add(name)
            yield f"{name} is missing"
        elif (size := _size(split, row["client"])) != row["examples"]:
            names.add(name)
            now = "is not there" if size is None else f"has {size:,}"
            yield f"{name} had {row['examples']:,} examples of client {row['client']!r}, which {now}"


def _size(split: Split, client: str) -> int | None:
    """Return the number of examples of a client; None if it is not in the split."""
    try:
        return int(split.sizes(np.array([split.position_of(client)], np.int64))[0])
    except DataError:
        return None


def _cause(path: Path, passed: Passed) -> str:
    had = experiment_record.stored_passed(path)
    before, now = ("dataset" in each.names for each in (had or passed, passed))
    if before != now:
        there, here = ("dataset= of its script", "[data] of the experiment")[:: 1 if before else -1]
        return f"It took {there}, and now {here} is used"
    if now:
        return "dataset= is probably made from other files or with another seed now"
    return "The files of [data] have probably changed, or the environment variable RAYSIM_DATA names another folder"
