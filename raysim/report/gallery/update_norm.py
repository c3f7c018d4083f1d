"""Draws the mean norm of a cohort's updates beside that of all clients' updates.

Source: Yang et al. (2023), figure 8.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MappingProxyType

from raysim.report.gallery import curves
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group

PANELS = MappingProxyType({"of the cohort": "mean_update_norm", "of all clients": "mean_norm_all_clients"})


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield one figure if all clients were probed."""
    found = {title: (column, curves.lines(groups, column)) for title, column in PANELS.items()}
    if all(lines for _, lines in found.values()):
        yield curves.beside(
            "update-norm-of-all-clients",
            "Mean norm of updates, of the cohort and of all clients",
            "Mean over trials. Where both agree, a cohort's updates are as large as those of all clients.",
            "mean norm of updates",
            found,
        )
