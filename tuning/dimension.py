"""One key's values in a space: those of a list, or all between two ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from raysim import ExperimentError

LISTS = ("grid", "choices")
RANGES = ("log", "uniform", "int")
KINDS = (*LISTS, *RANGES)

_INSIDE = (5**0.5 - 1) / 2
"""Where between two ends a range is tried as well: a key that takes whole numbers only takes none from there."""


@dataclass(frozen=True)
class Listed:
    """Values to choose from. `ordered`: they are numbers of a grid, which has edges."""

    values: tuple[Any, ...]
    ordered: bool

    @property
    def labels(self) -> list[CategoricalChoiceType]:
        """The values as Optuna keeps them: tables and lists as JSON."""
        return [value if isinstance(value, str | int | float) else json.dumps(value) for value in self.values]


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included."""

    kind: Literal["log", "uniform", "int"]
    low: float
    high: float


Dimension = Listed | Range


def read(key: str, table: Mapping[str, Any]) -> Dimension:
    """The dimension that a table such as { grid = [0.1, 1] } says; `key` is whose it is.

    >>> read("client.optimizer.lr", {"log": [0.001, 1]})
    Range(kind='log', low=0.001, high=1)

    Raises:
        ExperimentError: the table says no kind of values, or several, or values that make none.
    """
    if len(table) > 1:
        raise ExperimentError(
            f"tuning.space.{key} must have one of {', '.join(KINDS)} and nothing else, but got {', '.join(table)}"
        )
    ((kind, given),) = table.items()
    if not isinstance(given, list | tuple):
        raise ExperimentError(f"tuning.space.{key}.{kind} must be a list, but got {given!r}")
    return _listed(key, kind, list(given)) if kind in LISTS else _range(key, kind, list(given))


def _listed(key: str, kind: str, given: list[Any]) -> Listed:
    numbers = all(_is_number(value) for value in given)
    if kind == "grid" and not numbers:
        raise ExperimentError(f"tuning.space.{key}.grid must be a list of numbers, but got {given!r}; or take choices")
    if numbers and any(isinstance(value, float) for value in given):
        given = [float(value) for value in given]
    if not given or any(value in given[:place] for place, value in enumerate(given)):
        raise ExperimentError(f"tuning.space.{key}.{kind} must be values that differ, but got {given!r}")
    return Listed(tuple(given), ordered=kind == "grid")


def _range(key: str, kind: str, given: list[Any]) -> Range:
    ends = f"tuning.space.{key}.{kind} must be [low, high] with low < high"
    if len(given) != 2 or not all(_is_number(end) for end in given) or not given[0] < given[1]:
        raise ExperimentError(f"{ends}, but got {given!r}")
    low, high = given
    if kind == "log" and not low > 0:
        raise ExperimentError(f"{ends} and low > 0, but got {given!r}")
    if kind == "int" and not all(isinstance(end, int) for end in given):
        raise ExperimentError(f"{ends}, both whole numbers, but got {given!r}")
    return Range(kind, low, high)  # type: ignore[arg-type]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def distribution(dimension: Dimension) -> BaseDistribution:
    """The dimension in Optuna's terms."""
    if isinstance(dimension, Listed):
        return CategoricalDistribution(dimension.labels)
    if dimension.kind == "int":
        return IntDistribution(int(dimension.low), int(dimension.high))
    return FloatDistribution(dimension.low, dimension.high, log=dimension.kind == "log")


def value(dimension: Dimension, param: Any) -> Any:
    """The experiment's value, from a parameter in Optuna's terms."""
    if isinstance(dimension, Listed):
        return dimension.values[dimension.labels.index(param)]
    return param


def samples(dimension: Dimension) -> list[Any]:
    """Every listed value; of a range both ends, and a number inside.

    >>> samples(Range("int", 5, 50)), samples(Listed((0.1, 1.0), ordered=True))
    ([5, 50], [0.1, 1.0])
    """
    if isinstance(dimension, Listed):
        return list(dimension.values)
    if dimension.kind == "int":
        return [int(dimension.low), int(dimension.high)]
    inside = dimension.low + _INSIDE * (dimension.high - dimension.low)
    return [dimension.low, inside, dimension.high]
