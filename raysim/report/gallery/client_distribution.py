"""Draws the distribution of accuracy over clients, as cumulative curves."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.arrays import Float64s
from raysim.report.gallery import axes as ticks
from raysim.report.gallery.curves import drawn_points
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FINE_TUNING = "fine_tuning/"
"""How the splits of clients that fine-tuned the model begin."""


def splits(groups: Sequence[Group]) -> list[str]:
    """Return the splits with recorded clients, in order of appearance."""
    found = (split for group in groups for run in group.runs for split in pc.unique(run.clients["split"]).to_pylist())
    return list(dict.fromkeys(found))


def scored(clients: pa.Table, split: str) -> pa.Table:
    """Return clients and accuracies of a split, by the model that it is of; those whose accuracy is known.

    Rows of fine-tuning have the accuracy before it under `accuracy`.
    """
    name = "tuned_accuracy" if split.startswith(FINE_TUNING) else "accuracy"
    rows = clients.filter(pc.and_(pc.equal(clients["split"], split), pc.is_finite(clients[name])))
    return pa.table({"client": rows["client"], "accuracy": rows[name]})


def steps(axes: Axes, group: Group, x: Float64s, y: Float64s, where: Literal["mid", "post"]) -> None:
    """Draw one group's line in its look; both axes show shares."""
    axes.step(x, y, where=where, **group.look.line(len(x), group.legend))
    ticks.shares(axes)
    ticks.shares(axes, "x")


class _Curve(NamedTuple):
    group: Group
    accuracies: Float64s
    shares: Float64s


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for every split with recorded client accuracies."""
    for split in splits(groups):
        drawn = [curve for group in groups if len((curve := _curve(group, split, len(groups))).accuracies)]
        if not drawn:
            continue
        data = pa.table(
            {
                "group": pa.array([curve.group.label for curve in drawn for _ in curve.shares], pa.string()),
                "accuracy": np.concatenate([curve.accuracies for curve in drawn]),
                "share_of_clients": np.concatenate([curve.shares for curve in drawn]),
            }
        )
        yield Figure(
            f"clients-{split}-distribution",
            f"Accuracy of {split} clients: cumulative distribution",
            "The share of clients whose accuracy is at most that on the x axis, in the newest evaluation, all trials "
            "together. Curves further to the right are better; steep ones are fair.",
            data,
            partial(_draw, drawn),
        )


def _curve(group: Group, split: str, num_groups: int) -> _Curve:
    each = [scored(run.clients, split)["accuracy"].to_numpy() for run in group.runs]
    # A run's only client is the pooled split, whatever the number of trials.
    ordered = np.sort(np.concatenate([np.zeros(0), *(accuracies for accuracies in each if len(accuracies) > 1)]))
    shares = np.arange(1, len(ordered) + 1) / max(1, len(ordered))
    rows = drawn_points(len(ordered), num_groups) if len(ordered) else np.zeros(0, np.int64)
    return _Curve(group, ordered[rows], shares[rows])


def _draw(drawn: Sequence[_Curve], axes: Axes) -> None:
    for curve in sorted(drawn, key=lambda curve: curve.group.look.is_named):
        steps(axes, curve.group, curve.accuracies, curve.shares, "post")
    axes.set_xlabel("accuracy of a client")
    axes.set_ylabel("share of clients")
