"""Defines a table: a grid of configurations, each evaluated on every validation client after every round."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from raysim import Experiment, seeds
from raysim.arrays import Bools, Float64s
from raysim.experiment.row import Row
from tuning.dimension import Listed
from tuning.space import Space
from tuning.watched_figure import VALIDATION

LOSSES, ACCURACIES = "clients/loss", "clients/accuracy"
"""Columns with a list: the figure of each validation client."""

LISTS: Mapping[str, str] = MappingProxyType({LOSSES: "loss", ACCURACIES: "accuracy"})
"""The figure that is in each of these columns."""


@dataclass(frozen=True)
class ScoredClients:
    """The validation clients of a table: their names, and how many examples each has.

    weights: by "loss" and "accuracy", what each weighs in the figure of all, where that is not its examples: the places
    of texts that count.
    """

    names: tuple[str, ...]
    examples: tuple[int, ...]
    weights: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def of(self, figure: str) -> tuple[float, ...]:
        """Return what each client weighs in "loss" or "accuracy"."""
        return self.weights.get(figure, self.examples)


@dataclass(frozen=True)
class PublishedTable:
    """A grid of configurations and their rows.

    experiment: that of all runs, but for the values of `space`. seeds: of each configuration's runs. content:
    fingerprint of the data. rows: by configuration, in the order of `configurations`, and by seed; a run that diverged
    has fewer. A row has the columns of `rounds.parquet`, and the lists LOSSES and ACCURACIES; a
    client that a study does not see has no number there. vary: what varied with the seed beside the clients' draws,
    `tuning.vary`; None: the table was written by a version that did not say.
    """

    experiment: Experiment
    space: Space
    seeds: tuple[int, ...]
    content: str
    clients: ScoredClients
    rows: Sequence[Sequence[list[Row]]]
    vary: tuple[str, ...] | None = None

    @cached_property
    def configurations(self) -> tuple[Mapping[str, Any], ...]:
        """The values of each configuration, by dotted key; the last key changes first."""
        return configurations(self.space)


def values_of(space: Space, key: str) -> tuple[Any, ...]:
    """Return all values of a key whose dimension is finite."""
    dimension = space.dimensions[key]
    if isinstance(dimension, Listed):
        return dimension.values
    return tuple(range(int(dimension.low), int(dimension.high) + 1))


def configurations(space: Space) -> tuple[Mapping[str, Any], ...]:
    """Return all configurations of a finite space, in order: the last key changes first.

    >>> from tuning.space import parse
    >>> configurations(parse({"a": {"grid": [1, 2]}, "b": {"int": [5, 6]}}))[:2]
    ({'a': 1, 'b': 5}, {'a': 1, 'b': 6})
    """
    listed = [values_of(space, key) for key in space.dimensions]
    return tuple(dict(zip(space.dimensions, values, strict=True)) for values in itertools.product(*listed))


def place_of(space: Space, values: Mapping[str, Any]) -> int:
    """Return the place of a configuration in `configurations`.

    Raises:
        ValueError: a value is not listed.
    """
    every = [values_of(space, key) for key in space.dimensions]
    places = [listed.index(values[key]) for key, listed in zip(space.dimensions, every, strict=True)]
    return sum(place * math.prod(map(len, every[after:])) for after, place in enumerate(places, start=1))


def view_of(table: PublishedTable, most: int, *draw: int) -> PublishedTable:
    """Return the table as a study sees it that evaluates only so many validation clients of each run.

    Without `draw` the clients are those that `evaluation.clients` evaluates; with a number they are drawn anew.
    """
    sizes = {name: np.array(table.clients.of(name), np.float64) for name in LISTS.values()}
    count = len(table.clients.names)
    rows: list[list[list[Row]]] = []
    for runs in table.rows:
        rows.append([])
        for seed, of_run in zip(table.seeds, runs, strict=True):
            seen = np.zeros(count, np.bool_)
            seen[seeds.sample(seeds.key(seed, "evaluation", *draw), count, min(most, count))] = True
            weights = {name: np.where(seen, each, 0.0) / (each[seen].sum() or 1.0) for name, each in sizes.items()}
            rows[-1].append([_row_of(row, seen, weights) for row in of_run])
    return replace(table, rows=rows)


def _row_of(row: Row, seen: Bools, weights: Mapping[str, Float64s]) -> Row:
    """Return a row without the evaluations of all clients; `weights` are by figure, and 0 for clients not `seen`."""
    kept = {name: value for name, value in row.items() if not name.startswith("eval/")}
    for lists, name in LISTS.items():
        values, counts = np.array(row[lists], np.float64), weights[name] > 0
        # As an evaluation has it: without a place that counts the loss is 0, and there is no accuracy.
        if counts.any() or name == "loss":
            kept[f"{VALIDATION}/{name}"] = float(values[counts] @ weights[name][counts])
        kept[lists] = [value if is_seen else None for value, is_seen in zip(row[lists], seen, strict=True)]
    return kept
