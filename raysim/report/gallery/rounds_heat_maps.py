"""Draws heat maps of rounds to target accuracies over any two keys, with speed-ups.

Sources: Charles et al. (2021), figure 42; McMahan et al. (2017), tables 1, 2 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from raysim.report import number_formats
from raysim.report.gallery import cells, run_cost, speed_up_base, target
from raysim.report.gallery.cells import Cells, ColourMeaning
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.heat_maps import over
from raysim.report.groups import Group

ROW_IN = 0.44
"""Each cell has two lines."""


def make(groups: Sequence[Group], targets: Sequence[float]) -> Iterator[Figure]:
    """Yield a figure for every target and pair of keys; nothing if no accuracy was evaluated.

    Args:
        groups: of the report.
        targets: accuracies from 0 to 1; none: a share of the best.
    """
    aims = target.aims(groups, targets)
    if aims is None:
        return
    for aim in aims.targets:

        def rounds(group: Group, column: str = aims.column, aim: float = aim) -> float | None:
            return target.reach(group, column, aim, run_cost.by_rounds).mean

        at = speed_up_base.base(groups)
        for found in cells.over_pairs(groups, rounds, larger_is_better=False):
            speed_ups = {cell: _speed_up(found, at, cell) for cell in found.groups}
            places = [(row, place) for row in range(len(found.rows)) for place in range(len(found.columns))]
            baseline = ", ".join(f"{key} = {at[key]}" for key in (found.row_key, found.column_key) if key in at)
            yield Figure(
                f"rounds-heat-map-{found.row_key}-{found.column_key}" + (f"-{aim:g}" if len(targets) > 1 else ""),
                f"Rounds to {number_formats.share(aim)} over {found.row_key} and {found.column_key}",
                f"Rounds until {number_formats.share(aim)} ({aims.by}); {over(found)}. "
                + (f"In brackets the speed-up over {baseline}. " if baseline else "")
                + "Grey cells did not reach it in the rounds that they say; empty ones were not run.",
                found.table(
                    f"rounds to {number_formats.share(aim)}",
                    rounds=found.amounts.ravel().tolist(),
                    speed_up=[speed_ups.get(cell) for cell in places],
                ),
                partial(cells.draw, found, partial(_text, found, speed_ups), ColourMeaning("rounds", False, False)),
                height_in=1.3 + ROW_IN * len(found.rows),
            )


def _speed_up(found: Cells, at: Mapping[str, str], cell: tuple[int, int]) -> float | None:
    row, column = (
        names.index(at[key]) if at.get(key) in names else place
        for key, names, place in zip((found.row_key, found.column_key), (found.rows, found.columns), cell, strict=True)
    )
    ratio = float(found.amounts[row, column]) / float(found.amounts[cell])
    return ratio if math.isfinite(ratio) and (row, column) != cell else None


def _text(found: Cells, speed_ups: Mapping[tuple[int, int], float | None], cell: tuple[int, int]) -> str:
    value = float(found.amounts[cell])
    if math.isnan(value):
        most = max(run.rounds.num_rows for group in found.groups[cell] for run in group.runs)
        return f"not in\n{most:,}"
    ratio = speed_ups[cell]
    return f"{value:,.0f}" + ("" if ratio is None else f"\n({ratio:.1f}x)")
