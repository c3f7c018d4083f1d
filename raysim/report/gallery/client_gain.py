"""Draws the gain of clients by one method over another: the difference in accuracy, client by client.

Source: Yang et al. (2023), figure 11.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from raysim.arrays import Float64s
from raysim.report import number_formats
from raysim.report.gallery.client_distribution import scored, splits, steps
from raysim.report.gallery.curves import drawn_points
from raysim.report.gallery.figure import Figure, Panel
from raysim.report.groups import Group
from raysim.report.looks import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes


WHOSE = MappingProxyType({"train": "own training examples"})


class Gain(NamedTuple):
    """`gains`: differences in accuracy by `group`, rising, one per client and trial, or pair of trials."""

    group: Group
    gains: Float64s


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for every split of which trials of several groups share seeds and evaluated the same clients."""
    for split in splits(groups):
        yield from _figure(groups, split)


def _figure(groups: Sequence[Group], split: str) -> Iterator[Figure]:
    first, *others = groups
    found = [Gain(group, gains) for group in others if len(gains := _gains(first, group, split))]
    if not found:
        return
    rows = [(gain.group, gain.gains[drawn_points(len(gain.gains))]) for gain in found]
    data = pa.table(
        {
            "group": pa.array([group.label for group, gains in rows for _ in gains], pa.string()),
            "over": pa.array([first.label for _, gains in rows for _ in gains], pa.string()),
            "gain": np.concatenate([gains for _, gains in rows]),
        }
    )
    yield Figure(
        f"client-gain-{split}",
        f"What {split} clients gain over {first.label}",
        f"Difference in the accuracy on a client's {WHOSE.get(split, 'examples')}, newest evaluations, trials paired "
        f"by seed; clients in rising order. {gain_shares(found)}.",
        data,
        (
            Panel(
                f"{found[0].group.label if len(found) == 1 else 'gain'} over {first.label}", partial(draw_rising, found)
            ),
        ),
    )


def _gains(first: Group, other: Group, split: str) -> Float64s:
    """Return the rising differences over the clients that both runs of a pair of trials evaluated.

    A pair with one client only has none: such a client is the pooled split.
    """
    reference = {run.seeds: run for run in first.runs}
    parts = []
    for run in other.runs:
        if run.seeds not in reference:
            continue
        before, after = _accuracies(reference[run.seeds].clients, split), _accuracies(run.clients, split)
        both = [client for client in after if client in before]
        if len(both) > 1:
            parts.append(np.array([after[client] - before[client] for client in both]))
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0)


def _accuracies(clients: pa.Table, split: str) -> dict[str, float]:
    rows = scored(clients, split)
    return dict(zip(rows["client"].to_pylist(), rows["accuracy"].to_pylist(), strict=True))


def gain_shares(found: Sequence[Gain]) -> str:
    """Say which shares of the clients gain and lose, by group."""
    return "; ".join(
        f"{gain.group.label}: {number_formats.share(float((gain.gains > 0).mean()))} gain, "
        f"{number_formats.share(float((gain.gains < 0).mean()))} lose"
        for gain in found
        if gain.group.look.is_named
    )


def draw_rising(found: Sequence[Gain], axes: Axes) -> None:
    """Draw gains in rising order, a line per group."""
    axes.axhline(0, color=INK, linewidth=0.8)
    for gain in found:
        rows = drawn_points(len(gain.gains))
        steps(axes, gain.group, (rows + 0.5) / len(gain.gains), gain.gains[rows], "mid")
    axes.set_xlabel("share of clients, those that lose first")
    axes.set_ylabel("gain in accuracy")
