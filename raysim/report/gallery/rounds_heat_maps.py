"""Draws heat maps of rounds to target accuracies over any two keys, with speed-ups.

Sources: Charles et al. (2021), figure 42; McMahan et al. (2017), tables 1, 2 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from raysim.report.gallery import cells, run_cost, speed_up_base, target
from raysim.report.gallery.cells import Cells, ColourMeaning
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.target import Reach
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
        reaches = {group.label: target.reach(group, aims.column, aim, run_cost.by_rounds) for group in groups}

        def rounds(group: Group, reaches: Mapping[str, Reach] = reaches) -> float | None:
            return reaches[group.label].mean

        at = speed_up_base.base(groups)
        for found in cells.over_pairs(groups, rounds, larger_is_better=False):
            places = [(row, place) for row in range(len(found.rows)) for place in range(len(found.columns))]
            speed_ups = {cell: _speed_up(found, at, cell) for cell in found.groups}
            of_cells = {cell: _fewest([reaches[group.label] for group in of]) for cell, of in found.groups.items()}
            counts = [None if (of := of_cells.get(cell)) is None else (of.reached, of.trials) for cell in places]
            text = partial(_text, found, of_cells, speed_ups)
            baseline = ", ".join(f"{key} = {at[key]}" for key in (found.row_key, found.column_key) if key in at)
            yield Figure(
                f"rounds-heat-map-{found.row_key}-{found.column_key}" + (f"-{aim:g}" if len(targets) > 1 else ""),
                f"Rounds to {aims.written(aim)} over {found.row_key} and {found.column_key}",
                f"Rounds until {aims.written(aim)} ({aims.by}), mean over the trials that reached it"
                f"{_of_several(found)}. "
                + (f"In brackets the speed-up over {baseline}. " if baseline else "")
                + "Grey cells did not reach it in the rounds that they say; empty ones were not run.",
                found.table(
                    f"rounds to {aims.written(aim)}",
                    rounds=found.amounts.ravel().tolist(),
                    speed_up=[speed_ups.get(cell) for cell in places],
                    reached=[None if count is None else count[0] for count in counts],
                    trials=[None if count is None else count[1] for count in counts],
                ),
                partial(cells.draw, found, text, ColourMeaning("rounds", False, False)),
                height_in=1.3 + ROW_IN * len(found.rows),
            )


def _speed_up(found: Cells, at: Mapping[str, str], cell: tuple[int, int]) -> float | None:
    row, column = (
        names.index(at[key]) if at.get(key) in names else place
        for key, names, place in zip((found.row_key, found.column_key), (found.rows, found.columns), cell, strict=True)
    )
    ratio = float(found.amounts[row, column]) / float(found.amounts[cell])
    return ratio if math.isfinite(ratio) and (row, column) != cell else None


def _fewest(reaches: Sequence[Reach]) -> Reach:
    """Return what a cell shows: the fewest rounds; where no group reached the target, that which ran most."""
    return min(reaches, key=lambda each: (math.inf if each.mean is None else each.mean, -each.rounds))


def _of_several(found: Cells) -> str:
    """Return what a cell with several groups shows, as the end of a clause."""
    return "; where other keys differ too, the best over them" if found.has_several else ""


def _text(
    found: Cells,
    of_cells: Mapping[tuple[int, int], Reach],
    speed_ups: Mapping[tuple[int, int], float | None],
    cell: tuple[int, int],
) -> str:
    value, of = float(found.amounts[cell]), of_cells[cell]
    if math.isnan(value):
        return f"not in\n{of.rounds:,}"
    some = f", {of.reached} of {of.trials}" if of.is_partial else ""
    ratio = speed_ups[cell]
    return f"{value:,.0f}{some}" + ("" if ratio is None else f"\n({ratio:.1f}x)")
