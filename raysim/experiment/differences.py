"""Where two records differ, key by key: what a person needs to see when a run is not the one that was meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysim.experiment.experiment import Experiment


def settings(stored: Experiment, asked: Experiment) -> list[str]:
    """One line per key whose value is another, such as "client.optimizer.lr was 0.1, and is 0.5".

    How long to go on, where it is placed and how it is called may differ between a run and its continuation.
    """
    return differing(stored.determining(), asked.determining())


def differing(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[str]:
    """Likewise of any two records; `path` goes before every key.

    >>> differing({"client": {"epochs": 1}}, {"client": {"epochs": 2}, "seed": 3})
    ['client.epochs was 1, and is 2', 'seed was absent, and is 3']
    """
    lines: list[str] = []
    for key in dict.fromkeys([*before, *after]):
        old, new = before.get(key), after.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            lines += differing(old, new, f"{path}{key}.")
        elif old != new:
            lines.append(f"{path}{key} was {_written(old)}, and is {_written(new)}")
    return lines


def distinguishing(records: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What tells records apart: for each one, the keys whose values are not the same in all, with its own value.

    Where a choice by `name` differs, its key stands for the name, and its other keys count among those who chose alike
    only: another optimizer is one difference, however many keys it has. A table that some lack is "on" or None.

    >>> adam, sgd = {"name": "adam", "eps": 0.1}, {"name": "sgd"}
    >>> distinguishing([{"seed": 0, "optimizer": adam}, {"seed": 0, "optimizer": sgd}])
    [{'optimizer': 'adam'}, {'optimizer': 'sgd'}]
    """
    told: list[dict[str, Any]] = [{} for _ in records]
    _tell(dict(enumerate(records)), "", told)
    return told


def _tell(values: Mapping[int, Any], path: str, told: list[dict[str, Any]]) -> None:
    """Note the differences below `path` among the records with these numbers."""
    if all(value == next(iter(values.values())) for value in values.values()):
        return
    tables = {number: value for number, value in values.items() if isinstance(value, Mapping)}
    # An optimizer of a script's own is one choice for each label.
    heads = {number: value.get("label", value.get("name", "on")) for number, value in tables.items()}
    is_one_choice = len(tables) == len(values) and len(set(heads.values())) == 1
    if not is_one_choice:
        for number, value in values.items():
            told[number][path] = heads.get(number, value)
    for head in dict.fromkeys(heads.values()):
        alike = {number: table for number, table in tables.items() if heads[number] == head}
        for key in dict.fromkeys(key for table in alike.values() for key in table):
            below = f"{path}.{key}" if path else key
            _tell({number: table.get(key) for number, table in alike.items()}, below, told)


def _written(value: Any) -> str:
    return "absent" if value is None else repr(value)
