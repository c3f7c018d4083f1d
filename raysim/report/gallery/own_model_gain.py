"""Draws what clients gain by models of their own over the model of all: client by client, by examples and by labels.

Own models are fine-tuned ones (rows of the split "fine_tuning/...") or those of a personalisation ("personal/...").

Source: Wang et al. (2021), section 7.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raysim.arrays import Float64s
from raysim.report.gallery.client_distribution import splits
from raysim.report.gallery.client_gain import Gain, draw_rising, gain_shares
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.groups import Group
from raysim.report.looks import INK
from raysim.report.series import thin_out

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 1_500
"""Of all groups in total, in a panel."""

BINS = 6
"""Parts of about equal numbers of clients, whose means are a line."""

KINDS = MappingProxyType({"personal": ("global_accuracy", "accuracy"), "fine_tuning": ("accuracy", "tuned_accuracy")})
"""Rows by the beginning of their split: the columns of the model of all and of own models."""

AGAINST = MappingProxyType(
    {"training_examples": "training examples", "label_similarity": "cosine of a client's and all label counts"}
)
"""Columns that gains are drawn against, with their names on the axis."""


class _Clients(NamedTuple):
    """The clients of a group's runs, by column. seen: whether each took part; True where that is not known."""

    group: Group
    gain: Float64s
    columns: dict[str, Float64s]
    seen: np.ndarray


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for every split on which clients have models of their own."""
    for split in splits(groups):
        before, _, scored = split.partition("/")
        if before in KINDS and scored:
            yield from _figure(groups, split, scored)


def _figure(groups: Sequence[Group], split: str, scored: str) -> Iterator[Figure]:
    found = [clients for group in groups if len((clients := _clients(group, split)).gain)]
    if not found:
        return
    gains = [Gain(clients.group, np.sort(clients.gain)) for clients in found]
    panels = [Panel("client by client", partial(draw_rising, gains))]
    for column, name in AGAINST.items():
        if any(np.isfinite(clients.columns[column]).any() for clients in found):
            panels.append(Panel(f"by {column.replace('_', ' ')}", partial(_draw_against, found, column, name)))
    data = pa.table(
        {
            "group": pa.array([clients.group.label for clients in found for _ in clients.gain], pa.string()),
            "gain": np.concatenate([clients.gain for clients in found]),
            **{column: np.concatenate([clients.columns[column] for clients in found]) for column in AGAINST},
            "seen": np.concatenate([clients.seen for clients in found]),
        }
    )
    hollow = " Hollow points are clients that did not take part." if not data["seen"].to_numpy().all() else ""
    yield Figure(
        f"own-model-gain-{split}",
        f"What clients gain by {'fine-tuning' if split.startswith('fine') else 'models of their own'} on {scored}",
        f"Accuracy of a client's own model less that of the model of all, on the client's {scored} examples, newest "
        f"evaluations. {gain_shares(gains)}. Lines are means over about a sixth of the clients.{hollow}",
        data,
        tuple(panels),
    )


def _clients(group: Group, split: str) -> _Clients:
    before, after = KINDS[split.partition("/")[0]]
    parts = []
    for run in group.runs:
        rows = run.clients.filter(pc.equal(run.clients["split"], split))
        # A gain of the only client would be that of the pooled split.
        if {before, after} <= set(rows.column_names) and rows.num_rows > 1:
            parts.append(np.stack([_column(rows, name) for name in (before, after, *AGAINST, "seen")]))
    columns = np.concatenate(parts, axis=1) if parts else np.zeros((3 + len(AGAINST), 0))
    gain = columns[1] - columns[0]
    known = np.isfinite(gain)
    named = {name: columns[2 + place][known] for place, name in enumerate(AGAINST)}
    return _Clients(group, gain[known], named, columns[-1][known] != 0)


def _column(rows: pa.Table, name: str) -> Float64s:
    """A column's figures; NaN where there are none."""
    if name not in rows.column_names:
        return np.full(rows.num_rows, np.nan)
    values: Float64s = rows[name].cast(pa.float64()).to_numpy().astype(np.float64)
    return values


def _draw_against(found: Sequence[_Clients], column: str, name: str, axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.axhline(0, color=INK, linewidth=0.8)
    for clients in found:
        x = clients.columns[column]
        rows = np.flatnonzero(np.isfinite(x))
        if not len(rows):
            continue
        rows = rows[np.argsort(x[rows], kind="stable")]
        look = clients.group.look
        shown = rows[thin_out(len(rows), MAX_POINTS // len(found))]
        for seen, face in ((True, look.colour), (False, "none")):
            chosen = shown[clients.seen[shown] == seen]
            axes.scatter(
                x[chosen], clients.gain[chosen], s=10, alpha=0.5, linewidths=0.7, color=look.colour, facecolors=face
            )
        # Clients with equal figures are in one part.
        cuts = np.unique(np.quantile(x[rows], np.arange(1, BINS) / BINS))
        part_of = np.searchsorted(cuts, x[rows], side="right")
        parts = [rows[part_of == part] for part in np.unique(part_of)]
        means = np.array([(x[part].mean(), clients.gain[part].mean()) for part in parts])
        axes.plot(*means.T, **look.line(len(means), clients.group.legend))
    axes.xaxis.set_major_locator(MaxNLocator(4, integer=column == "training_examples"))
    axes.set_xlabel(name)
    axes.set_ylabel("gain in accuracy")
