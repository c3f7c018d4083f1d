"""Draws a table of rounds to target accuracies with speed-ups: a row per method, a column per target.

Source: McMahan et al. (2017), tables 1, 2 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from raysim.report import figures
from raysim.report.gallery import target, written_table
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.target import Reach
from raysim.report.groups import Group, setting, with_names, written

MOST_ROWS, MOST_TARGETS = 40, 4


class _Cell(NamedTuple):
    """`speed_up`: over the base; None for the base itself, and where one of both did not reach the target."""

    reach: Reach
    speed_up: float | None


def make(groups: Sequence[Group], targets: Sequence[float]) -> Iterator[Figure]:
    """Yield a table for every few targets if several methods evaluated accuracy.

    Args:
        groups: of the report.
        targets: accuracies from 0 to 1; none: a share of the best.
    """
    aims = target.aims(groups, targets)
    if aims is None or len(groups) < 2:
        return
    at = target.base(groups)
    keys = list(dict.fromkeys(key for group in groups for key in group.keys))
    names = groups[0].names
    over = with_names(", ".join(setting(*item) for item in at.items()), names)
    # A method with a name of its own is told by it, and so is one that no key tells apart.
    is_named = not keys or any(group.label in names.values() for group in groups)
    for first in range(0, len(aims.targets), MOST_TARGETS):
        shown = aims.targets[first : first + MOST_TARGETS]
        rows = {group.label: [_cell(groups, group, at, aims.column, aim) for aim in shown] for group in groups}
        head = [
            *([""] if is_named else [names.get(key, key) for key in keys]),
            *(f"rounds to {figures.share(aim)}" for aim in shown),
        ]
        lines = [
            [*([group.label] if is_named else _settings(group, keys, names)), *map(_text, rows[group.label])]
            for group in groups
        ]
        cut = f" The first {MOST_ROWS} of {len(lines)} methods; the CSV has all." if len(lines) > MOST_ROWS else ""
        yield Figure(
            "rounds-to-target-table" + (f"-{first // MOST_TARGETS + 1}" if first else ""),
            "Rounds to target accuracy and speed-up",
            f"{aims.caption} Mean over the trials that reached it."
            + (f" In brackets the speed-up over {over}, other keys the same." if over else "")
            + f' "not in N": no trial reached it in N rounds.{cut}',
            _data(groups, keys, rows, shown),
            partial(written_table.draw, head, lines[:MOST_ROWS]),
            height_in=written_table.height_in(min(len(lines), MOST_ROWS)),
        )


def _settings(group: Group, keys: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return the values of keys, or the names of these settings."""
    settings = ((key, group.keys[key]) for key in keys if key in group.keys)
    texts = {key: names.get(setting(key, value)) or written(value) for key, value in settings}
    return [texts.get(key, "") for key in keys]


def _cell(groups: Sequence[Group], group: Group, at: dict[str, str], column: str, aim: float) -> _Cell:
    reached = target.reach(group, column, aim, target.by_rounds)
    base = target.base_of(groups, group, at)
    if base is None or base is group or reached.mean is None:
        return _Cell(reached, None)
    slow = target.reach(base, column, aim, target.by_rounds).mean
    return _Cell(reached, None if slow is None else slow / reached.mean)


def _text(cell: _Cell) -> str:
    if cell.reach.mean is None:
        return cell.reach.missed
    some = "" if cell.reach.reached == cell.reach.trials else f", {cell.reach.reached} of {cell.reach.trials}"
    return f"{cell.reach.mean:,.0f}{some}" + ("" if cell.speed_up is None else f" ({cell.speed_up:.1f}x)")


def _data(
    groups: Sequence[Group],
    keys: Sequence[str],
    rows: dict[str, list[_Cell]],
    targets: Sequence[float],
) -> pa.Table:
    cells = [(aim, cell) for of_method in rows.values() for aim, cell in zip(targets, of_method, strict=True)]
    return pa.table(
        {
            "group": [group.label for group in groups for _ in targets],
            **{key: [text for group in groups for text in _settings(group, [key], {}) * len(targets)] for key in keys},
            "target": [aim for aim, _ in cells],
            "rounds": pa.array([cell.reach.mean for _, cell in cells], pa.float64()),
            "std": pa.array([cell.reach.deviation for _, cell in cells], pa.float64()),
            "reached": [cell.reach.reached for _, cell in cells],
            "trials": [cell.reach.trials for _, cell in cells],
            "rounds_run": [cell.reach.rounds for _, cell in cells],
            "speed_up": pa.array([cell.speed_up for _, cell in cells], pa.float64()),
        }
    )
