"""Defines the values of one key in a space: a list, or a range between two ends."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from raysim import ExperimentError
from raysim.config.plain import shown

LISTS = ("grid", "choices")
RANGES = ("log", "uniform", "int")
KINDS = (*LISTS, *RANGES)

MEANT = MappingProxyType(
    {
        "loguniform": "log",
        "log_uniform": "log",
        "float": "uniform",
        "randint": "int",
        "integer": "int",
        "categorical": "choices",
        "choice": "choices",
        "values": "grid",
        "list": "grid",
    }
)
"""Words that other tuners have for kinds of values."""

MOST_WHOLE = 2**53
"""Whole numbers up to this size are numbers of 64 bits with a point too, by which samplers draw."""

_INSIDE = (5**0.5 - 1) / 2
"""Point inside a range that is also checked: a key of whole numbers refuses it."""


@dataclass(frozen=True)
class Listed:
    """Values to choose from. `ordered`: they are numbers of a grid, which has edges."""

    values: tuple[Any, ...]
    ordered: bool

    @property
    def labels(self) -> list[CategoricalChoiceType]:
        """Return the values in Optuna's form: tables and lists as JSON."""
        return [value if isinstance(value, str | int | float) else json.dumps(value) for value in self.values]


@dataclass(frozen=True)
class Range:
    """Numbers between two ends, both included."""

    kind: Literal["log", "uniform", "int"]
    low: float
    high: float


Dimension = Listed | Range


def read(key: str, table: Mapping[str, Any]) -> Dimension:
    """Return the dimension of a table such as { grid = [0.1, 1] }, for the key `key`.

    >>> read("client.optimizer.lr", {"log": [0.001, 1]})
    Range(kind='log', low=0.001, high=1)

    Raises:
        ExperimentError: the table has no kind of values, or several, or invalid values.
    """
    if len(table) > 1:
        raise ExperimentError(
            f"tuning.space.{key} must have one of {', '.join(KINDS)} and nothing else, but got {', '.join(table)}"
        )
    ((kind, values),) = table.items()
    if not isinstance(values, list | tuple):
        raise ExperimentError(f"tuning.space.{key}.{kind} must be a list, but got {shown(values)}")
    return _listed(key, kind, list(values)) if kind in LISTS else _range(key, kind, list(values))


def _listed(key: str, kind: str, values: list[Any]) -> Listed:
    numbers = all(_is_number(value) for value in values)
    if kind == "grid" and not numbers:
        raise ExperimentError(
            f"tuning.space.{key}.grid must be a list of numbers, but got {shown(values)}; or take choices"
        )
    if numbers and any(isinstance(value, float) for value in values):
        if any(float(value) != value for value in values):
            raise ExperimentError(
                f"tuning.space.{key}.{kind} must be whole numbers alone, or have none above 2^53, but got "
                f"{shown(values)}"
            )
        values = [float(value) for value in values]
    if not values:
        raise ExperimentError(f"tuning.space.{key}.{kind} must be a list of at least one value, but got []")
    if any(value in values[:place] for place, value in enumerate(values)):
        raise ExperimentError(f"tuning.space.{key}.{kind} must be values that differ, but got {shown(values)}")
    return Listed(tuple(values), ordered=kind == "grid")


def _range(key: str, kind: str, values: list[Any]) -> Range:
    ends = f"tuning.space.{key}.{kind} must be [low, high] with low < high"
    if len(values) != 2 or not all(_is_number(end) for end in values) or not values[0] < values[1]:
        raise ExperimentError(f"{ends}, but got {shown(values)}")
    low, high = values
    if kind == "log" and not low > 0:
        raise ExperimentError(f"{ends} and low > 0, but got {shown(values)}")
    if kind == "int" and not all(isinstance(end, int) for end in values):
        raise ExperimentError(f"{ends}, both whole numbers, but got {shown(values)}")
    if kind == "int" and max(abs(low), abs(high)) > MOST_WHOLE:
        raise ExperimentError(f"{ends} and sizes up to 2^53, but got {shown(values)}: samplers miss some beyond it")
    if not math.isfinite(float(high) - float(low)):
        raise ExperimentError(f"{ends} and a finite difference, but got {shown(values)}")
    return Range(kind, low, high)  # type: ignore[arg-type]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def distribution(dimension: Dimension) -> BaseDistribution:
    """Return the dimension in Optuna's terms."""
    if isinstance(dimension, Listed):
        return CategoricalDistribution(dimension.labels)
    if dimension.kind == "int":
        return IntDistribution(int(dimension.low), int(dimension.high))
    return FloatDistribution(dimension.low, dimension.high, log=dimension.kind == "log")


def value(dimension: Dimension, param: Any) -> Any:
    """Return the experiment's value, from a parameter in Optuna's terms."""
    if isinstance(dimension, Listed):
        return dimension.values[dimension.labels.index(param)]
    return param


def param(key: str, dimension: Dimension, value: Any) -> Any:
    """Return the parameter in Optuna's terms, from the experiment's value of the key.

    >>> param("k", Listed(({"name": "md"}, "x"), ordered=False), {"name": "md"}), param("k", Range("log", 0.1, 1), 0.5)
    ('{"name": "md"}', 0.5)
    >>> param("k", Range("int", 1, 5), 2.0)
    2

    Raises:
        ExperimentError: the dimension does not have this value.
    """
    if isinstance(dimension, Listed):
        if value in dimension.values:
            return dimension.labels[dimension.values.index(value)]
    elif _is_number(value) and dimension.low <= value <= dimension.high:
        if dimension.kind != "int":
            return value
        if value == int(value):
            return int(value)
    raise ExperimentError(f"{key} must be one of tuning.space, but got {shown(value)}")


def samples(dimension: Dimension) -> list[Any]:
    """Return every listed value; of a range both ends, and a number inside.

    >>> samples(Range("int", 5, 50)), samples(Listed((0.1, 1.0), ordered=True))
    ([5, 50], [0.1, 1.0])
    """
    if isinstance(dimension, Listed):
        return list(dimension.values)
    if dimension.kind == "int":
        return [int(dimension.low), int(dimension.high)]
    inside = dimension.low + _INSIDE * (dimension.high - dimension.low)
    return [dimension.low, inside, dimension.high]
