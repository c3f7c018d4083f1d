"""Defines sweeps: one experiment with several values of some keys.

A point is an experiment with one combination of values; run alone, it has the same bits. Points keep the seed, so in
each round cohorts of different sizes are nested, and cohorts of one size are equal.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from raysim.config import overrides
from raysim.config.plain import plain as plain_values
from raysim.config.plain import shown
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment

Sweep = Mapping[str, Sequence[Any]]
"""Dotted key -> its values: {"cohort.size": [10, 50], "client.optimizer.lr": [0.1, 0.3]}."""

LONGEST_WORD = 60
"""Characters of a value in a folder's name."""

LONGEST_FOLDER = 200
"""Characters of a folder's name: file systems take 255 bytes."""

MOST_POINTS = 10_000

FORM = 'A sweep has a list of values for each key, such as {"cohort.size": [5, 10]}'

_AS_WRITTEN = re.compile(r"[A-Za-z0-9._+-]+")


class ExperimentPoint(NamedTuple):
    """`values`: the value of each swept key. `folder`: its folder's name within the sweep's."""

    values: Mapping[str, Any]
    folder: str
    experiment: Experiment


def parse(texts: Iterable[str]) -> dict[str, list[Any]]:
    """Parse texts such as "cohort.size=10,50,100"; values are TOML, or bare words.

    >>> parse(["cohort.size=10,50", "model.activation=relu,tanh"])
    {'cohort.size': [10, 50], 'model.activation': ['relu', 'tanh']}

    Raises:
        ExperimentError: a text of another form, or a key that comes twice.
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        key, values = overrides.parted(text)
        if not key or not values.strip():
            raise ExperimentError(f"A sweep has the form key.key=value,value, but got {shown(text)}.")
        if key in found:
            raise ExperimentError(
                f"A key is swept once, but {shown(key)} comes twice: write its values behind one another."
            )
        found[key] = _values(values)
    return found


def plain(sweep: Mapping[str, Iterable[Any]]) -> dict[str, list[Any]]:
    """Convert the values to lists of Python's numbers: `np.arange(1, 5)` are values too.

    >>> plain({"client.epochs": np.arange(1, 4)})
    {'client.epochs': [1, 2, 3]}

    Raises:
        ExperimentError: no mapping, or a key's values are not a list.
    """
    given: Any = sweep
    if not isinstance(given, Mapping):
        raise ExperimentError(f"{FORM}, but got {shown(given)}.")
    for key, values in given.items():
        if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
            raise ExperimentError(f"{FORM}, but {shown(key)} has {shown(values)}.")
    return {
        key: [value.item() if isinstance(value, np.generic) else value for value in values]
        for key, values in sweep.items()
    }


def points(experiment: Experiment, sweep: Sweep) -> tuple[ExperimentPoint, ...]:
    """Return every combination of values, the last key's changing fastest.

    >>> experiment = Experiment.model_validate({"cohort": {"size": 10}})
    >>> [point.folder for point in points(experiment, {"seed": [0, 1], "cohort.size": [5, 10]})]
    ['seed=0,cohort.size=5', 'seed=0,cohort.size=10', 'seed=1,cohort.size=5', 'seed=1,cohort.size=10']

    Raises:
        ExperimentError: no key, a key without values or with a value twice, or a combination that is not a valid
            experiment.
    """
    sweep = plain_values(sweep)
    if not sweep:
        raise ExperimentError("A sweep needs a key and its values, but got none.")
    if (num := math.prod(len(values) for values in sweep.values())) > MOST_POINTS:
        raise ExperimentError(f"A sweep has at most {MOST_POINTS:,} combinations of values, but this one has {num:,}.")
    for key, values in sweep.items():
        if not values or any(value in values[:place] for place, value in enumerate(values)):
            raise ExperimentError(f"A sweep needs values, each once, but {key} has {shown(values)}.")
        if key in ("name", "trials"):
            raise ExperimentError(f"{key} cannot be swept: every point has that of the experiment.")
    experiment.check_constants(sweep)
    return tuple(
        _point(experiment, dict(zip(sweep, chosen, strict=True)), sweep)
        for chosen in itertools.product(*sweep.values())
    )


def label(value: Any, place: int) -> str:
    """Return a value as a word: a table has its `name`'s word, any other value its place among the key's values.

    >>> label(0.1, 0), label({"name": "md"}, 1), label([1, 2], 2)
    ('0.1', 'md', 'value-2')
    """
    if isinstance(value, Mapping):
        value = value.get("name", "")
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= LONGEST_WORD and _AS_WRITTEN.fullmatch(text) else f"value-{place}"


def labels(values: Sequence[Any]) -> list[str]:
    """Return the values as words, all different, also in file systems to which "A" and "a" are one name."""
    words = [label(value, place) for place, value in enumerate(values)]
    is_each_once = len({word.lower() for word in words}) == len(words)
    return words if is_each_once else [f"value-{place}" for place in range(len(values))]


def renamed(before: Sweep, now: Sweep) -> list[str]:
    """Say which values are another word among those that a key has now, so that folders have other names.

    Args:
        before: what was swept.
        now: the same keys, each with those values and more.

    >>> renamed({"client.epochs": [1]}, {"client.epochs": [1, 2]})
    []
    >>> renamed({"client.optimizer.lr": [1]}, {"client.optimizer.lr": [0.5, 1.0]})
    ['client.optimizer.lr=1 would be client.optimizer.lr=1.0']
    """
    found = []
    for key, values in before.items():
        words = labels(now[key])
        for value, word in zip(values, labels(values), strict=True):
            if (other := words[list(now[key]).index(value)]) != word:
                found.append(f"{key}={word} would be {key}={other}")
    return found


def _point(experiment: Experiment, values: dict[str, Any], sweep: Sweep) -> ExperimentPoint:
    words = {key: labels(sweep[key])[list(sweep[key]).index(value)] for key, value in values.items()}
    folder = ",".join(f"{key}={word}" for key, word in words.items())
    if len(folder) > LONGEST_FOLDER:
        raise ExperimentError(
            f"A point's folder is named by its keys and values, in at most {LONGEST_FOLDER} characters, but "
            f"{shown(folder)} has {len(folder)}: sweep fewer keys at once."
        )
    try:
        return ExperimentPoint(values, folder, experiment.changed(values))
    except ExperimentError as error:
        raise ExperimentError(f"{folder}: {error}") from None


def _values(text: str) -> list[Any]:
    values = overrides.parse_value(f"[{text}]")
    if isinstance(values, list):
        return values
    return [overrides.parse_value(part.strip()) for part in text.split(",")]
