"""Draws a table of rounds to target accuracies with speed-ups: a row per method, a column per target.

Source: McMahan et al. (2017), tables 1 to 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa

from raysim.report.gallery import run_cost, speed_up_base, target, written_table
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.target import Reach
from raysim.report.groups import Group, setting, with_names, written

MOST_ROWS, MOST_TARGETS = 40, 4
_POOLED = MappingProxyType({"pooled": "data", setting("pooled", True): "pooled", setting("pooled", False): "clients"})
"""What the picture says of training on the pooled data, unless it was given other names."""


class _Cell(NamedTuple):
    """`speed_up`: over the base; None for the base itself, and where one of both did not reach the target.

    local_steps: the mean of a method on the pooled data; None for others.
    """

    reach: Reach
    speed_up: float | None
    local_steps: float | None = None


def make(groups: Sequence[Group], targets: Sequence[float]) -> Iterator[Figure]:
    """Yield a table for every few targets if several methods evaluated accuracy.

    Args:
        groups: of the report.
        targets: accuracies from 0 to 1; none: a share of the best.
    """
    aims = target.aims(groups, targets)
    if aims is None or len(groups) < 2:
        return
    at = speed_up_base.base([group for group in groups if not speed_up_base.is_pooled(group)])
    is_over_pooled = speed_up_base.is_over_pooled(groups, at)
    make_cell = _over_pooled if is_over_pooled else partial(_cell, at=at)
    keys = list(dict.fromkeys(key for group in groups for key in group.keys))
    names = {**_POOLED, **groups[0].names}
    over = with_names(", ".join(setting(*item) for item in at.items()), names) + ", other keys the same" if at else ""
    if is_over_pooled:
        # A federated client would send its model after each local step.
        over = "the pooled data, of which each local step counts as a round"
    # A method with a name of its own is told by it, and so is one that no key tells apart.
    is_named = not keys or any(group.label in group.names.values() for group in groups)
    for first in range(0, len(aims.targets), MOST_TARGETS):
        shown = aims.targets[first : first + MOST_TARGETS]
        rows = {group.label: [make_cell(groups, group, aims.column, aim) for aim in shown] for group in groups}
        head = [
            *([""] if is_named else [names.get(key, key) for key in keys]),
            *(f"rounds to {aims.written(aim)}" for aim in shown),
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
            + (f" In brackets the speed-up over {over}." if over else "")
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


def _cell(groups: Sequence[Group], group: Group, column: str, aim: float, at: Mapping[str, str]) -> _Cell:
    reached, steps = _reached(group, column, aim)
    base = speed_up_base.base_of(groups, group, at)
    if base is None or base is group or reached.mean is None:
        return _Cell(reached, None, steps)
    slow = target.reach(base, column, aim, run_cost.by_rounds).mean
    return _Cell(reached, None if slow is None else slow / reached.mean, steps)


def _over_pooled(groups: Sequence[Group], group: Group, column: str, aim: float) -> _Cell:
    """Return a cell with the speed-up over the fastest method on the pooled data, by its local steps."""
    reached, steps = _reached(group, column, aim)
    pooled = [found for other in groups if (found := _reached(other, column, aim)[1]) is not None]
    spent = steps if speed_up_base.is_pooled(group) else reached.mean
    if spent is None or not pooled or steps == min(pooled):
        return _Cell(reached, None, steps)
    return _Cell(reached, min(pooled) / spent, steps)


def _reached(group: Group, column: str, aim: float) -> tuple[Reach, float | None]:
    """Return the rounds to a target, and the mean local steps of a method on the pooled data."""
    steps = target.reach(group, column, aim, run_cost.by_local_steps).mean if speed_up_base.is_pooled(group) else None
    return target.reach(group, column, aim, run_cost.by_rounds), steps


def _text(cell: _Cell) -> str:
    if cell.reach.mean is None:
        return cell.reach.missed
    some = "" if cell.reach.reached == cell.reach.trials else f", {cell.reach.reached} of {cell.reach.trials}"
    steps = "" if cell.local_steps is None else f", {cell.local_steps:,.0f} steps"
    return f"{cell.reach.mean:,.0f}{some}{steps}" + ("" if cell.speed_up is None else f" ({cell.speed_up:.1f}x)")


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
            "local_steps": pa.array([cell.local_steps for _, cell in cells], pa.float64()),
        }
    )
