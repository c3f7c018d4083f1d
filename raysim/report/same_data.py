"""Tells whether runs are of the same data, but for what their seeds draw: else they are no trials of one method."""

from __future__ import annotations

from typing import Any

from raysim.data.partitions.natural import Natural
from raysim.data.populated import Populated
from raysim.data.section import paths
from raysim.report.runs import Run

OWN = frozenset({"arrow", "instructions", "leaf"})
"""Sources of a user's own files, so that other files are other data. Those of other sources are published ones."""

_DIGITS = 8


def same_data(run: Run, other: Run) -> bool:
    """Return whether two runs of the same settings are of the same data, as far as their records tell."""
    if run.data_fingerprint == other.data_fingerprint or None in (run.data_fingerprint, other.data_fingerprint):
        return True
    if run.experiment.data is None:
        # A script may make data by the run's seed.
        return run.seeds != other.seeds
    if run.seeds[1] == other.seeds[1] or not draws_by_seed(run.experiment.data):
        return False
    return run.experiment.data.name not in OWN or files(run) == files(other)


def draws_by_seed(data: Any) -> bool:
    """Return whether the data depend on their seed."""
    if not isinstance(data, Populated):
        return True
    is_whole = isinstance(data.partition, Natural) and data.clients is None
    return not is_whole or bool(data.mix or data.holdout or data.holdout_examples)


def files(run: Run) -> dict[str, Any]:
    """Return the keys of `[data]` that name files or folders."""
    data = run.experiment.data
    return {} if data is None else data.model_dump(mode="json", include=paths(data))


def short(run: Run) -> str | None:
    """Return the first digits of the data's fingerprint, which tell data of the same files apart."""
    return None if run.data_fingerprint is None else run.data_fingerprint[:_DIGITS]
