"""Combines the tables of several runs: into one with a run for each row, or into mean and deviation by round."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


def with_tags(tables: Sequence[tuple[Mapping[str, Any], pa.Table]]) -> pa.Table:
    """Join all rows, with a column for each tag first; all tables have the same tags, and there is at least one table.

    A tag's column is as `column` makes it.
    """
    columns = {name: column([tags[name] for tags, _ in tables]) for name in tables[0][0]}
    parts = []
    for index, (_, table) in enumerate(tables):
        for place, (name, values) in enumerate(columns.items()):
            table = table.add_column(place, name, pa.repeat(values[index], table.num_rows))
        parts.append(table)
    return pa.concat_tables(parts, promote_options="default")


def column(values: Sequence[Any]) -> pa.Array:
    """Return values unchanged if all are numbers, all strings or all booleans; else as JSON."""
    kind = _of_one_kind(values)
    return pa.array(values, kind) if kind else pa.array([json.dumps(value) for value in values], pa.string())


def _of_one_kind(values: Sequence[Any]) -> pa.DataType | None:
    kinds = {type(value) for value in values}
    if kinds <= {int, float}:
        return pa.int64() if kinds == {int} else pa.float64()
    if kinds == {bool}:
        return pa.bool_()
    return pa.string() if kinds == {str} else None


MEAN, DEVIATION = "mean", "std"


def summarise(trials: Sequence[pa.Table]) -> pa.Table:
    """Return one row per round that a trial has finished.

    Columns: `round`; `trials`, the number of trials that finished it; and for every figure of the records
    `<name>/mean` and `<name>/std`, over the trials in which it is defined. The standard deviation is that of a sample
    (divisor n - 1): null if fewer than two trials have the figure, NaN if one of theirs is not finite.

    Args:
        trials: each one's rounds, a row per round, as `Result.rounds`.
    """
    names = dict.fromkeys(
        field.name for rounds in trials for field in rounds.schema if _holds_numbers(field) and field.name != "round"
    )
    values: dict[int, dict[str, list[float]]] = {}
    finished: Counter[int] = Counter()
    for rounds in trials:
        for row in rounds.select(["round", *(n for n in names if n in rounds.column_names)]).to_pylist():
            finished[row["round"]] += 1
            of_round = values.setdefault(row.pop("round"), {})
            for name, value in row.items():
                if value is not None:
                    of_round.setdefault(name, []).append(float(value))
    order = sorted(values)
    columns: dict[str, pa.Array] = {
        "round": pa.array(order, pa.int64()),
        "trials": pa.array([finished[t] for t in order], pa.int64()),
    }
    for name in names:
        found = [values[t].get(name, []) for t in order]
        columns[f"{name}/{MEAN}"] = pa.array([mean(v) if v else None for v in found], pa.float64())
        columns[f"{name}/{DEVIATION}"] = pa.array([deviation(v) if len(v) > 1 else None for v in found], pa.float64())
    return pa.table(columns)


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value; NaN and infinities count as in IEEE's sums.

    >>> mean([1.0, 2.0]), mean([1.0, math.inf]), mean([math.inf, -math.inf])
    (1.5, inf, nan)
    """
    try:
        return statistics.fmean(values)
    except (OverflowError, ValueError):
        # Infinities of both signs, or a sum beyond float64.
        return sum(value / len(values) for value in values)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation of a sample of at least two values (divisor n - 1); NaN if one is not finite.

    >>> deviation([1.0, 3.0]) == 2**0.5, deviation([1.0, math.inf])
    (True, nan)
    """
    if not all(map(math.isfinite, values)):
        return math.nan
    try:
        return statistics.stdev(values)
    except OverflowError:
        return math.inf


def by_trial(rounds: pa.Table) -> list[pa.Table]:
    """Split a table by its column `trial`; a table without the column is one run."""
    if "trial" not in rounds.column_names:
        return [rounds]
    numbers = pc.unique(rounds["trial"]).to_pylist()
    return [rounds.filter(pc.equal(rounds["trial"], number)).drop_columns(["trial"]) for number in numbers]


def part(summary: pa.Table, which: str) -> pa.Table:
    """Return the means (`MEAN`) or the deviations (`DEVIATION`), with the names of the records."""
    suffix = f"/{which}"
    chosen = {n.removesuffix(suffix): summary[n] for n in summary.column_names if n.endswith(suffix)}
    return pa.table({"round": summary["round"], **chosen})


def _holds_numbers(field: pa.Field) -> bool:
    return bool(pa.types.is_floating(field.type) or pa.types.is_integer(field.type))
