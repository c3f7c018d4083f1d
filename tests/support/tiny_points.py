"""Runs a few points of a command of the papers' page on tiny files, for the pictures that its row names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import raysim
from raysim.experiment.differences import distinguishing
from raysim.report.groups import Group, group_runs, written
from raysim.report.runs import read_all
from tests.support import tiny
from tests.support.paper_commands import Command

VALUES, KEYS = 2, 2
"""Of each of the first swept keys the first values; of further keys the first."""
COHORTS = 3
"""Sizes of cohorts, at most: populations are tiny."""
SMALL = (
    "rounds=2",
    "evaluation.every=1",
    "engine.workers=0",
    "client.max_local_steps=1",
    "trials=1",
    'model={name="linear"}',
)
"""What a picture shows does not depend on the model; the method, its records and the swept keys stay."""


def few(points: Sequence[raysim.Experiment], most: int = VALUES) -> list[raysim.Experiment]:
    """Return a few points of a sweep, with a few clients in a round of a small population.

    `most`: values of each of the first swept keys.
    """
    keys = distinguishing([point.determining() for point in points])
    taken = {}
    for number, key in enumerate(dict.fromkeys(key for row in keys for key in row)):
        values = list(dict.fromkeys(written(row[key]) for row in keys if key in row))
        taken[key] = values[: (min(most, COHORTS) if key == "cohort.size" else most) if number < KEYS else 1]
    chosen = [
        point
        for point, row in zip(points, keys, strict=True)
        if all(written(value) in taken[key] for key, value in row.items())
    ]
    sizes = sorted({point.cohort.size for point in chosen if point.cohort.size is not None})
    return [_small(point, 2 + sizes.index(point.cohort.size)) for point in chosen if point.cohort.size is not None]


def _small(point: raysim.Experiment, cohort: int) -> raysim.Experiment:
    divided = getattr(point.data, "clients", None) is not None
    return point.changed([*SMALL, f"cohort.size={cohort}", *(["data.clients=12"] if divided else [])])


def run(command: Command, folder: Path, most: int = VALUES) -> list[Group]:
    """Run a few points of a command below a folder; returns them as a report sees them. `most`: see `few`."""
    for number, point in enumerate(few(command.points, most)):
        raysim.run(point, path=folder / "runs" / f"{number}")
    return group_runs(read_all([folder / "runs"])[0])[0]


def files(folder: Path, command: Command) -> None:
    """Write the tiny files of a command's data."""
    data = command.points[0].data
    assert data is not None
    tiny.write(folder, data.name)
