"""The space of a study as data: dotted keys of the experiment, and what values each may take.

`client.optimizer.lr = { grid = [0.01, 0.1, 1] }`   values to go through, in this order
`cohort.sampler = { choices = [{ name = "md" }, { name = "uniform" }] }`   likewise, for what has no order
`client.optimizer.lr = { log = [1e-4, 10] }`         a number between two ends, uniform in its logarithm
`client.correction.mu = { uniform = [0, 1] }`        a number between two ends
`cohort.size = { int = [5, 50] }`                    a whole number between two ends, both included
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from raysim import Experiment, ExperimentError

LISTS = ("grid", "choices")
RANGES = ("log", "uniform", "int")

PROTOCOL = ("name", "seed", "trials", "tuning", "evaluation", "engine", "checkpoint")
"""Sections that say how a study measures, or where it runs: no trial has its own."""
PROTOCOL_KEYS = ("data.holdout", "data.holdout_examples", "data.seed", "model.seed", "cohort.seed")

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


@dataclass(frozen=True)
class Space:
    """Dotted key -> dimension, in the order of the file."""

    dimensions: Mapping[str, Dimension]

    @property
    def grid(self) -> dict[str, list[CategoricalChoiceType]] | None:
        """Every key's values, where all of them can be gone through; else None."""
        found: dict[str, list[CategoricalChoiceType]] = {}
        for key, dimension in self.dimensions.items():
            if isinstance(dimension, Listed):
                found[key] = dimension.labels
            elif dimension.kind == "int":
                found[key] = list(range(int(dimension.low), int(dimension.high) + 1))
            else:
                return None
        return found

    @property
    def size(self) -> int | None:
        """How many configurations there are; None: no end of them."""
        if self.grid is None:
            return None
        size = 1
        for values in self.grid.values():
            size *= len(values)
        return size

    def distributions(self) -> dict[str, BaseDistribution]:
        """The space in Optuna's terms, by the same keys."""
        return {key: _distribution(dimension) for key, dimension in self.dimensions.items()}

    def suggest(self, trial: optuna.Trial) -> None:
        """Have the trial's sampler choose a value for every key, but for those that it has already."""
        for key, distribution in self.distributions().items():
            match distribution:
                case CategoricalDistribution():
                    trial.suggest_categorical(key, distribution.choices)
                case IntDistribution():
                    trial.suggest_int(key, distribution.low, distribution.high)
                case FloatDistribution():
                    trial.suggest_float(key, distribution.low, distribution.high, log=distribution.log)

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """The experiment's values by dotted key, from a trial's parameters in Optuna's terms."""
        return {key: _value(self.dimensions[key], params[key]) for key in self.dimensions}

    def plain(self) -> dict[str, dict[str, list[Any]]]:
        """The space as it would be written down, by dotted key: what makes two studies the same."""
        return {
            key: {("grid" if d.ordered else "choices"): list(d.values)}
            if isinstance(d, Listed)
            else {d.kind: [d.low, d.high]}
            for key, d in self.dimensions.items()
        }


def parse(table: Mapping[str, Any]) -> Space:
    """Read a space from tables within tables, or from dotted keys.

    Raises:
        ExperimentError: a key says no kind of values, or values that make none.
    """
    dimensions = dict(_dimensions(table, ""))
    if not dimensions:
        raise ExperimentError("tuning.space must name at least one key of the experiment, but it is empty.")
    return Space(dimensions)


def check(space: Space, experiment: Experiment) -> None:
    """Put every listed value, and both ends and a point inside of every range, into the experiment.

    A key's values are tried with the first value of every other key.

    Raises:
        ExperimentError: a key that does not exist or belongs to the study itself, or a value that does not fit.
    """
    for key in space.dimensions:
        if key.partition(".")[0] in PROTOCOL or key in PROTOCOL_KEYS:
            raise ExperimentError(
                f"tuning.space.{key}: this key cannot vary within a study: it says how all of its trials are run or "
                f"measured ({', '.join((*PROTOCOL, *PROTOCOL_KEYS))})."
            )
    samples = {key: _samples(dimension) for key, dimension in space.dimensions.items()}
    first = {key: values[0] for key, values in samples.items()}
    for key, values in samples.items():
        for value in values:
            try:
                experiment.changed({**first, key: value})
            except ExperimentError as error:
                raise ExperimentError(f"tuning.space.{key} with the value {value!r}: {error}") from None


def _dimensions(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Dimension]]:
    for name, inner in table.items():
        key = f"{path}{name}"
        if not isinstance(inner, Mapping):
            raise ExperimentError(
                f"tuning.space.{key} must be a table with one of {', '.join((*LISTS, *RANGES))}, but got {inner!r}"
            )
        if any(kind in inner for kind in (*LISTS, *RANGES)):
            yield key, _dimension(key, inner)
        else:
            yield from _dimensions(inner, f"{key}.")


def _dimension(key: str, table: Mapping[str, Any]) -> Dimension:
    if len(table) > 1:
        raise ExperimentError(
            f"tuning.space.{key} must have one of {', '.join((*LISTS, *RANGES))} and nothing else, but got "
            f"{', '.join(table)}"
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


def _distribution(dimension: Dimension) -> BaseDistribution:
    if isinstance(dimension, Listed):
        return CategoricalDistribution(dimension.labels)
    if dimension.kind == "int":
        return IntDistribution(int(dimension.low), int(dimension.high))
    return FloatDistribution(dimension.low, dimension.high, log=dimension.kind == "log")


def _value(dimension: Dimension, param: Any) -> Any:
    if isinstance(dimension, Listed):
        return dimension.values[dimension.labels.index(param)]
    return param


def _samples(dimension: Dimension) -> list[Any]:
    if isinstance(dimension, Listed):
        return list(dimension.values)
    if dimension.kind == "int":
        return [int(dimension.low), int(dimension.high)]
    inside = dimension.low + _INSIDE * (dimension.high - dimension.low)
    return [dimension.low, inside, dimension.high]
