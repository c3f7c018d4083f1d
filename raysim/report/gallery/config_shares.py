"""Draws the shares of FedEx's configurations against rounds: a picture per method, a line per configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from raysim.config import kinds
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import parameters
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.parameters import Values
from raysim.report.groups import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THETA = "fedex/theta"


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield a figure for each of the first groups that used FedEx; configurations of one course share a line."""
    used = [group for group in groups if group.runs[0].experiment.fedex is not None]
    yield from parameters.figures(used, THETA, "fedex-shares", "Shares of FedEx's configurations", _caption, _draw)


def _caption(group: Group) -> str:
    fedex = group.runs[0].experiment.fedex
    assert fedex is not None
    return (
        f"theta, by which each client of a round draws its configuration, mean over trials; it follows the errors of "
        f"the clients' trained models on {fedex.split}. Numbers are places in fedex.configs."
    )


def _draw(group: Group, found: Values, axes: Axes) -> None:
    fedex = group.runs[0].experiment.fedex
    assert fedex is not None
    configs = [", ".join(f"{key} = {kinds.toml(value)}" for key, value in one.items()) for one in fedex.configs]
    named = {f"{j}: {configs[int(j)] or '[client] as it is'}": values for j, values in found.items()}
    parameters.draw(named, "share", axes, middle=1 / len(configs))
    # Shares near zero are nothing new, whatever their scale.
    axes.set_yscale("linear")
    axes.set_ylim(0, 1)
    ticks.shares(axes)
