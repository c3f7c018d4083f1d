"""Defines the space of a study as data: dotted keys of the experiment, and the values of each.

`client.optimizer.lr = { grid = [0.01, 0.1, 1] }`   values to go through, in this order
`cohort.sampler = { choices = [{ name = "md" }, { name = "uniform" }] }`   likewise, for what has no order
`client.optimizer.lr = { log = [1e-4, 10] }`         a number between two ends, uniform in its logarithm
`client.correction.mu = { uniform = [0, 1] }`        a number between two ends
`cohort.size = { int = [5, 50] }`                    a whole number between two ends, both included
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalChoiceType,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from raysim import Experiment, ExperimentError
from raysim.config.messages import nearest
from raysim.config.plain import plain, shown
from tuning.dimension import KINDS, MEANT, Dimension, Listed, distribution, param, read, samples, value

COHORT_SIZE = "cohort.size"
"""The key of the clients of a round."""

MOST_LISTED = 100_000
"""Configurations that a grid goes through at most."""

PROTOCOL = ("name", "seed", "trials", "tuning", "evaluation", "engine", "checkpoint")
"""Sections of the protocol or of the machine: they are the same for all trials."""
PROTOCOL_KEYS = ("data.holdout", "data.holdout_examples", "data.seed", "model.seed", "cohort.seed")


@dataclass(frozen=True)
class Space:
    """Dotted key -> dimension, in the order of the file."""

    dimensions: Mapping[str, Dimension]

    @property
    def grid(self) -> dict[str, list[CategoricalChoiceType]] | None:
        """Return every key's values if all keys have lists, of at most `MOST_LISTED` combinations; else None."""
        if self.size is None or self.size > MOST_LISTED:
            return None
        found: dict[str, list[CategoricalChoiceType]] = {}
        for key, dimension in self.dimensions.items():
            if isinstance(dimension, Listed):
                found[key] = dimension.labels
            else:
                found[key] = list(range(int(dimension.low), int(dimension.high) + 1))
        return found

    @property
    def size(self) -> int | None:
        """Return the number of configurations; None: infinite."""
        size = 1
        for dimension in self.dimensions.values():
            if isinstance(dimension, Listed):
                size *= len(dimension.values)
            elif dimension.kind == "int":
                size *= int(dimension.high) - int(dimension.low) + 1
            else:
                return None
        return size

    def largest(self, key: str, usual: int) -> int:
        """Return the largest value of a key of whole numbers; `usual` if it is none of the space."""
        match self.dimensions.get(key):
            case None:
                return usual
            case Listed(values=values):
                return int(max(values))
            case dimension:
                return int(dimension.high)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return the space in Optuna's terms, by the same keys."""
        return {key: distribution(dimension) for key, dimension in self.dimensions.items()}

    def suggest(self, trial: optuna.Trial) -> None:
        """Have the trial's sampler choose a value for every key that has none yet."""
        for key, kind in self.distributions().items():
            match kind:
                case CategoricalDistribution():
                    trial.suggest_categorical(key, kind.choices)
                case IntDistribution():
                    trial.suggest_int(key, kind.low, kind.high)
                case FloatDistribution():
                    trial.suggest_float(key, kind.low, kind.high, log=kind.log)

    def values(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the experiment's values by dotted key, from a trial's parameters in Optuna's terms."""
        return {key: value(self.dimensions[key], params[key]) for key in self.dimensions}

    def params(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return a trial's parameters in Optuna's terms, from the experiment's values; see `values`.

        Raises:
            ExperimentError: a key is missing or not of the space, or a value is not one of the key's.
        """
        if values.keys() != self.dimensions.keys():
            raise ExperimentError(
                f"a configuration has a value of each key of tuning.space ({', '.join(self.dimensions)}) and of no "
                f"other, but got {', '.join(values) or 'none'}"
            )
        return {key: param(key, dimension, values[key]) for key, dimension in self.dimensions.items()}

    def plain(self) -> dict[str, dict[str, list[Any]]]:
        """Return the space as plain values by dotted key, which identify a study."""
        return {
            key: {("grid" if d.ordered else "choices"): list(d.values)}
            if isinstance(d, Listed)
            else {d.kind: [d.low, d.high]}
            for key, d in self.dimensions.items()
        }


def parse(table: Mapping[str, Any]) -> Space:
    """Read a space from tables within tables, or from dotted keys.

    >>> space = parse({"client": {"optimizer": {"lr": {"grid": [0.1, 1]}}}, "cohort.size": {"int": [5, 7]}})
    >>> space.grid, space.size
    ({'client.optimizer.lr': [0.1, 1.0], 'cohort.size': [5, 6, 7]}, 6)

    Raises:
        ExperimentError: a key has no kind of values, or invalid values.
    """
    # Before any value is compared with another: NaN equals nothing, and Python has integers that are not floats.
    dimensions = dict(_dimensions(plain(table, "tuning.space"), ""))
    if not dimensions:
        raise ExperimentError("tuning.space must name at least one key of the experiment, but it is empty.")
    return Space(dimensions)


def _sets(change: Mapping[str, Any], key: str) -> bool:
    """Whether a change of [client] sets a key such as "client.optimizer.lr", by itself or in a table."""
    return any(f"{key}.".startswith(f"client.{own}.") for own in change)


def check(space: Space, experiment: Experiment) -> None:
    """Check that the experiment accepts every listed value, and both ends and an inner point of every range.

    A key's values are checked with the first value of every other key.

    Raises:
        ExperimentError: a key does not exist or belongs to the study itself, or a value does not fit.
    """
    for key in space.dimensions:
        if key.partition(".")[0] in PROTOCOL or key in PROTOCOL_KEYS:
            raise ExperimentError(
                f"tuning.space.{key}: this key cannot vary within a study: it defines how all of its trials are run or "
                f"measured ({', '.join((*PROTOCOL, *PROTOCOL_KEYS))})."
            )
        if experiment.fedex is not None and all(_sets(change, key) for change in experiment.fedex.configs):
            raise ExperimentError(
                f"tuning.space.{key}: every configuration of fedex.configs sets {key}, so no trial would differ by it: "
                f"leave it out of one of them, or remove [fedex] (--unset fedex)."
            )
    _check_inner(space)
    try:
        experiment.check_constants(space.dimensions)
    except ExperimentError as error:
        raise ExperimentError(f"tuning.space: {error}") from None
    for key, values in points(space):
        try:
            changed = experiment.changed(values)
        except ExperimentError as error:
            # The other keys have their first values: the error may be of one of those.
            named = next((other for other in values if str(error).startswith(f"unknown key {other!r}")), key)
            raise ExperimentError(f"tuning.space.{named} with the value {values[named]!r}: {error}") from None
        _check_protocol(key, experiment, changed)


def _check_inner(space: Space) -> None:
    """Refuse a key that is set by a table of another key, too: the table's value would not be the one that is tried."""
    for outer, dimension in space.dimensions.items():
        for key in space.dimensions:
            inner = key.removeprefix(f"{outer}.")
            if inner != key and isinstance(dimension, Listed) and any(_has(value, inner) for value in dimension.values):
                raise ExperimentError(
                    f"tuning.space.{outer}: its tables have {inner}, which tuning.space.{key} sets, too, so theirs "
                    f"would not be tried: remove one of the two."
                )


def _has(value: Any, key: str) -> bool:
    name, _, inner = key.partition(".")
    return isinstance(value, Mapping) and name in value and (not inner or _has(value[name], inner))


def _check_protocol(key: str, experiment: Experiment, changed: Experiment) -> None:
    """Refuse a table of the key by which a key of the protocol differs from the experiment's."""
    for other in PROTOCOL_KEYS:
        if other.startswith(f"{key}.") and (given := _given(changed, other)) != (own := _given(experiment, other)):
            raise ExperimentError(
                f"tuning.space.{key}: {other} is the same for all trials, and the experiment has {shown(own)}, but one "
                f"of these tables has {shown(given)}: give it in all of them as in the experiment."
            )


def _given(experiment: Experiment, key: str) -> Any:
    section, _, name = key.partition(".")
    value = getattr(getattr(experiment, section), name, None)
    # Nothing held out is the default of a source, or a source has no such key.
    return None if value == 0.0 and isinstance(value, float) else value


def points(space: Space) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield configurations: every listed value, both ends and an inner point of every range, with the first value of
    every other key; each with the key that varies."""
    tried = {key: samples(dimension) for key, dimension in space.dimensions.items()}
    first = {key: values[0] for key, values in tried.items()}
    for key, values in tried.items():
        for one in values:
            yield key, {**first, key: one}


def _dimensions(table: Mapping[str, Any], path: str) -> Iterator[tuple[str, Dimension]]:
    for name, inner in table.items():
        key = f"{path}{name}"
        # What is like a kind of values is not a key.
        if isinstance(inner, list | tuple) and path and (hint := nearest(name, list(KINDS), MEANT)):
            raise ExperimentError(f"tuning.space.{path[:-1]} must be one of {', '.join(KINDS)}, but got {name!r}{hint}")
        if not isinstance(inner, Mapping):
            meant = f" ({shown({'grid': list(inner)})} lists them)" if isinstance(inner, list | tuple) else ""
            raise ExperimentError(
                f"tuning.space.{key} must be a table with one of {', '.join(KINDS)}, but got {shown(inner)}{meant}"
            )
        if any(kind in inner for kind in KINDS):
            yield key, read(key, inner)
        else:
            yield from _dimensions(inner, f"{key}.")
