"""What several trials came to, as a table: the last thing that `raysim run` prints of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from raysim.elsewhere.folder import named
from raysim.experiment import Experiment
from raysim.report import figures
from raysim.report.closing import Columns, Line, newest, pictures
from raysim.report.evaluations import headlines
from raysim.summary import DEVIATION, MEAN, part


def lines(experiment: Experiment, summary: pa.Table, path: Path) -> list[Line]:
    """The table's rows, label and text.

    Args:
        experiment: what was run, with its trials.
        summary: mean and standard deviation of every figure, one row per round.
        path: the folder of all trials.
    """
    count, first = experiment.trials.count, experiment.seed
    return [
        ("experiment", experiment.name),
        ("trials", f"{count:,}, seeds {first} to {first + count - 1}, varying {', '.join(experiment.trials.vary)}"),
        ("rounds", f"{summary.num_rows:,}"),
        *headlined(summary),
        ("folder", f"{named(path)} (trial-0 to trial-{count - 1}, each a run's folder; summary.parquet)"),
        *pictures(path),
        ("next", f"raysim resume {named(path)} --trials {2 * count}"),
    ]


def headlined(summary: pa.Table) -> Iterator[Line]:
    """The newest figures of training and of each evaluated split: mean, and deviation where several trials have it."""
    means, deviations = _newest(part(summary, MEAN)), _newest(part(summary, DEVIATION))
    named = {"training": "accuracy" if "accuracy" in means else "loss", **headlines(means)}
    for label, name in named.items():
        index, mean = means.get(name, (0, None))
        if mean is None:
            continue
        write = figures.share if name.endswith("accuracy") else figures.loss
        _, deviation = deviations[name]
        around = "" if deviation is None else f" +- {write(deviation)}"
        yield label, f"{name.rpartition('/')[2]} {write(mean)}{around} (after round {index + 1:,})"


def _newest(table: pa.Table) -> Columns:
    return {name: newest(table, name) for name in table.column_names}
