"""How much the updates of a round agree: what the gradient similarity index and FedGLAD are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raysim.layout import Layout
from raysim.server.gsi import gsi
from raysim.server.norms import group_norms
from raysim.server.sums import Sums


class Agreement(NamedTuple):
    """Per parameter group, of the vectors that enter the mean: sum_i p_i |g_i,P|^2 and |sum_i p_i g_i,P|^2."""

    mean_squared_norms: Sequence[float]
    squared_norms_of_mean: Sequence[float]


def agreement(layout: Layout, sums: Sums) -> Agreement:
    """The agreement of at least one client, from sums."""
    # fednova's tau_eff; 1 elsewhere.
    effective = sums.normaliser / sums.weight
    return Agreement(
        (sums.squared_norms * (effective**2 / sums.weight)).tolist(),
        [(norm * effective / sums.weight) ** 2 for norm in group_norms(layout, sums.delta)],
    )


def similarity(layout: Layout, of: Agreement, prefix: str = "") -> dict[str, float | None]:
    """`gsi` of the whole model and `gsi/<group>` of every group, under names that begin with `prefix`."""
    said: dict[str, float | None] = {
        f"{prefix}gsi": gsi(sum(of.mean_squared_norms), sum(of.squared_norms_of_mean)),
    }
    for name, spread, mean in zip(layout.names, *of, strict=True):
        said[f"{prefix}gsi/{name}"] = gsi(spread, mean)
    return said
