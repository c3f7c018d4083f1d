"""Groups that differ in a numeric key, put in a row: what figures against the cohort size are drawn along."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raysim.report.groups import Group, written
from raysim.report.looks import Look, looks

COHORT_SIZE = "cohort.size"


class Lane(NamedTuple):
    """Groups that differ in the one key only: `sizes` are its values, rising, one per group."""

    label: str
    look: Look
    sizes: tuple[float, ...]
    groups: tuple[Group, ...]


def lanes(groups: Sequence[Group], key: str = COHORT_SIZE) -> list[Lane]:
    """The groups along `key`, a lane for each combination of the other keys; those of one value only are left out."""
    found: dict[tuple[tuple[str, str], ...], list[Group]] = {}
    for group in groups:
        if isinstance(group.keys.get(key), int | float):
            others = tuple((name, written(value)) for name, value in group.keys.items() if name != key)
            found.setdefault(others, []).append(group)
    rows = {others: sorted(row, key=lambda group: group.keys[key]) for others, row in found.items() if len(row) > 1}
    drawn = looks(-float(i) for i in range(len(rows)))
    return [
        Lane(
            ", ".join(f"{name} = {value}" for name, value in others) or row[0].runs[0].experiment.name,
            look,
            tuple(float(group.keys[key]) for group in row),
            tuple(row),
        )
        for (others, row), look in zip(rows.items(), drawn, strict=True)
    ]


def all_sizes(given: Sequence[Lane]) -> list[float]:
    """Every value of the key, rising."""
    return sorted({size for lane in given for size in lane.sizes})
