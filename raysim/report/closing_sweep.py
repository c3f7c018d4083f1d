"""What a sweep came to, as a table: the last thing that `raysim run --sweep` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from raysim.elsewhere.folder import named
from raysim.experiment import Experiment
from raysim.report import figures
from raysim.report.closing import Line, pictures
from raysim.report.closing_trials import headlined
from raysim.summary import by_trial, summarise


def lines(experiment: Experiment, points: Sequence[tuple[str, pa.Table]], path: Path) -> list[Line]:
    """The table's rows, label and text.

    Args:
        experiment: what was swept.
        points: each one's label and rounds; those of several trials have a column `trial`.
        path: the folder of the sweep.
    """
    count = experiment.trials.count
    each = f" of {figures.counted(count, 'trial')} each" if count > 1 else ""
    return [
        ("experiment", experiment.name),
        ("points", f"{len(points):,}{each}"),
        *((label, _figures(rounds)) for label, rounds in points),
        ("folder", f"{named(path)} (a folder for each point; sweep.parquet)"),
        *pictures(path),
        ("next", f"raysim resume {named(path)} --rounds {2 * experiment.rounds}"),
    ]


def _figures(rounds: pa.Table) -> str:
    return "; ".join(f"{label} {text}" for label, text in headlined(summarise(by_trial(rounds))))
