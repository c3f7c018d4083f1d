"""Folders of runs as tests need them: recorded, not run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

import raysim
from raysim.run_folder import experiment_record, run_table
from raysim.run_folder.client_table import CLIENT_SCHEMA
from raysim.run_folder.passed_parts import Passed
from raysim.run_folder.rows import table
from raysim.run_folder.writer import RunFolder


def experiment(**sections: Any) -> raysim.Experiment:
    """A complete experiment of two rounds; keyword arguments replace whole sections."""
    base: dict[str, Any] = {
        "name": "made",
        "rounds": 2,
        "data": {"name": "digits", "clients": 20},
        "model": {"name": "linear"},
        "client": {"optimizer": {"name": "sgd", "lr": 0.1}},
        "cohort": {"size": 5},
    }
    return raysim.Experiment.model_validate({**base, **sections})


def write(
    path: Path,
    rows: Iterable[Mapping[str, Any]],
    clients: Mapping[str, float] | None = None,
    data_fingerprint: str | None = "digits",
    training_clients: int | None = None,
    clients_of: str = "test",
    own_models: Mapping[str, Mapping[str, Any]] | None = None,
    passed: tuple[str, ...] = (),
    code: Mapping[str, str] | None = None,
    goes_on: tuple[int, str] | None = None,
    **sections: Any,
) -> Path:
    """Record a run with these rows; `round` is counted. `clients`: accuracy by client of a split, after the last.

    `own_models`: by client, columns of its row of personal models on that split. `passed`, `code`: of parts.
    `goes_on`: the number of first rounds that are another run's, and the owner by which that one is told.
    """
    counted = [{"round": index, **row} for index, row in enumerate(rows)]
    parts = Passed(passed, code=code or {})
    facts = experiment_record.PlannedFacts(data_fingerprint, training_clients, passed=parts)
    if goes_on is not None:
        facts = replace(facts, goes_on_after=goes_on[0], owner=goes_on[1])
    RunFolder.create(path, experiment(**sections), "fingerprint", facts=facts)
    run_table.write_table(table(counted), path / "rounds.parquet")
    if clients is not None:
        scored = [
            {
                "round": len(counted) - 1,
                "split": clients_of,
                "client": name,
                "examples": 4,
                "loss": 1.0,
                "accuracy": value,
            }
            for name, value in clients.items()
        ]
        scores = table(scored).cast(CLIENT_SCHEMA.empty_table().select(list(scored[0])).schema)
        if own_models is not None:
            head = {"round": len(counted) - 1, "split": f"personal/{clients_of}", "examples": 4, "loss": 1.0}
            own = table([{**head, "client": name, **columns} for name, columns in own_models.items()])
            scores = pa.concat_tables([scores, own], promote_options="default")
        run_table.write_table(scores, path / "clients" / f"round-{len(counted) - 1:06d}.parquet")
    return path


def accuracies(*values: float) -> list[dict[str, float]]:
    """Rows with these test accuracies, evaluated in every round."""
    return [{"eval/test/accuracy": value} for value in values]
