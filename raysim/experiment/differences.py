"""Lists the differences of two records, key by key, for a user whose run is not the intended one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raysim.experiment.experiment import Experiment


def settings(stored: Experiment, asked: Experiment) -> list[str]:
    """List one line per key with different values, such as "client.optimizer.lr was 0.1, and is 0.5".

    Rounds, placement and name may differ between a run and its continuation.
    """
    return differing(stored.determining(), asked.determining())


def differing(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> list[str]:
    """List the differences of any two records; `path` is the prefix of every key.

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
    """Return, for each record, the keys whose values are not the same in all records, with its values.

    If a choice by `name` differs, its key has the name as value. Its other keys are compared only among records with
    the same choice: another optimizer is one difference. A table that some records lack is "on" or None.

    >>> adam, sgd = {"name": "adam", "eps": 0.1}, {"name": "sgd"}
    >>> distinguishing([{"seed": 0, "optimizer": adam}, {"seed": 0, "optimizer": sgd}])
    [{'optimizer': 'adam'}, {'optimizer': 'sgd'}]
    """
    found: list[dict[str, Any]] = [{} for _ in records]
    _collect(dict(enumerate(records)), "", found)
    return found


def _collect(values: Mapping[int, Any], path: str, found: list[dict[str, Any]]) -> None:
    """Note the differences below `path` among the records with these numbers."""
    if all(value == next(iter(values.values())) for value in values.values()):
        return
    tables = {number: value for number, value in values.items() if isinstance(value, Mapping)}
    # An optimizer of a script's own is one choice for each label.
    heads = {number: value.get("label", value.get("name", "on")) for number, value in tables.items()}
    is_one_choice = len(tables) == len(values) and len(set(heads.values())) == 1
    if not is_one_choice:
        for number, value in values.items():
            found[number][path] = heads.get(number, value)
    for head in dict.fromkeys(heads.values()):
        alike = {number: table for number, table in tables.items() if heads[number] == head}
        for key in dict.fromkeys(key for table in alike.values() for key in table):
            below = f"{path}.{key}" if path else key
            _collect({number: table.get(key) for number, table in alike.items()}, below, found)


def _written(value: Any) -> str:
    return "absent" if value is None else repr(value)
