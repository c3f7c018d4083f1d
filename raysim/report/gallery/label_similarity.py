"""Draws the gradients' similarity index against the cohort's label similarity, a point per round.

Source: Yang et al. (2023), equations 16 to 18.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.arrays import Float64s
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group
from raysim.report.series import thin_out
from raysim.server.ledger import is_constant

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 1_500
"""Of all groups in total."""


class _Cloud(NamedTuple):
    """Rounds of all trials; `correlation` is Pearson's, None if either figure is constant."""

    group: Group
    similarity: Float64s
    indices: Float64s
    correlation: float | None


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield one figure if `server.diagnostics.labels` was on."""
    named = [group for group in groups if group.look.is_named]
    clouds = [cloud for group in named if len((cloud := _cloud(group)).indices) > 2]
    if not clouds:
        return
    correlations = "; ".join(
        f"{cloud.group.label}: {'undefined' if cloud.correlation is None else f'{cloud.correlation:.2f}'}"
        for cloud in clouds
    )
    drawn = []
    for cloud in clouds:
        rows = thin_out(len(cloud.indices), MAX_POINTS // len(clouds))
        drawn.append(cloud._replace(similarity=cloud.similarity[rows], indices=cloud.indices[rows]))
    data = pa.table(
        {
            "group": pa.array([cloud.group.label for cloud in drawn for _ in cloud.indices], pa.string()),
            "label_similarity": np.concatenate([cloud.similarity for cloud in drawn]),
            "gsi": np.concatenate([cloud.indices for cloud in drawn]),
        }
    )
    yield Figure(
        "gsi-and-label-similarity",
        "Similarity index against label similarity",
        f"A point is a round. Pearson's correlation over all rounds and trials: {correlations}.",
        data,
        partial(_draw, drawn),
    )


def _cloud(group: Group) -> _Cloud:
    parts = []
    for run in group.runs:
        if {"label_similarity", "gsi"} <= set(run.rounds.column_names):
            known = pc.and_(pc.is_valid(run.rounds["label_similarity"]), pc.is_finite(run.rounds["gsi"]))
            rows = run.rounds.filter(known)
            parts.append(np.stack([rows["label_similarity"].to_numpy(), rows["gsi"].to_numpy()]))
    similarity, indices = np.concatenate(parts, axis=1) if parts else np.zeros((2, 0))
    undefined = len(indices) < 2 or any(is_constant(one.var(), one.mean()) for one in (similarity, indices))
    return _Cloud(group, similarity, indices, None if undefined else float(np.corrcoef(similarity, indices)[0, 1]))


def _draw(drawn: Sequence[_Cloud], axes: Axes) -> None:
    for cloud in drawn:
        axes.scatter(
            cloud.similarity,
            cloud.indices,
            s=9,
            alpha=0.55,
            linewidths=0,
            color=cloud.group.look.colour,
            marker=cloud.group.look.marker,
            label=cloud.group.label,
        )
    axes.set_xlabel("cosine of the cohort's and all clients' label counts")
    axes.set_ylabel("similarity index (GSI)")
