"""Lists the differences of two records, key by key, for a user whose run is not the intended one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from raysim.experiment.experiment import Experiment


def settings(stored: Experiment, asked: Experiment) -> list[str]:
    """List one line per key with different values, such as "client.optimizer.lr was 0.1, and is 0.5".

    Rounds, placement and name may differ between a run and its continuation.
    """
    return differing(stored.determining(), asked.determining())


def of_record(stored: Experiment, asked: Experiment) -> list[str]:
    """List likewise the differences in what determines no round: name, end, checkpoints and pictures."""
    names = {"name", "rounds", "checkpoint", "stop", "report"}
    before, after = (each.model_dump(mode="json", by_alias=True, include=names) for each in (stored, asked))
    return differing(before, after)


def of_run(kept: Experiment, said: Experiment, swept: Iterable[str] = ()) -> list[str]:
    """List how a run's record differs from the experiment that its place in a series or a study says.

    What only the record of a run has is left out: a script's own parts, and what a plan makes of them and of a budget.

    Args:
        kept: from the run's record.
        said: by its place.
        swept: keys that tell the places apart; they are compared even where they determine no numbers.
    """
    record, before = kept.determining(), said.determining()
    after = _with_own(before, record)
    if after != before:
        # An own part may be defined with other weights than the experiment's default.
        after["server"]["weighting"] = record["server"]["weighting"]
    privacy, kept_privacy = after["server"]["privacy"], record["server"]["privacy"]
    if privacy is not None and kept_privacy is not None and privacy.get("noise_multiplier") is None:
        privacy["noise_multiplier"] = kept_privacy.get("noise_multiplier")
    lines = differing(after, record)
    whole, its = (each.model_dump(mode="json", by_alias=True) for each in (said, kept))
    for key in swept:
        is_compared = _at(after, key) is not None or _at(record, key) is not None
        if not is_compared and key.partition(".")[0] not in _NOT_OF_A_PLACE and _at(whole, key) != _at(its, key):
            lines.append(f"{key} was {_written(_at(whole, key))}, and is {_written(_at(its, key))}")
    return lines


OF_THE_START = ("server.clip.initial", "server.zeroing.initial", "server.optimizer.v0")
"""Keys of a state's first values: they change nothing of a run that goes on from another one's state."""


def of_the_start(before: Experiment, after: Experiment) -> list[str]:
    """List likewise the differences in what only says how a run begins."""
    record, asked = before.determining(), after.determining()
    both = [(key, _at(record, key), _at(asked, key)) for key in OF_THE_START]
    return [
        f"{key} was {_written(was)}, and is {_written(now)}"
        for key, was, now in both
        if was is not None and now is not None and was != now
    ]


_NOT_OF_A_PLACE = ("engine", "tuning", "report")
"""Sections that a call may change, or that a record does not have."""


def _with_own(said: Any, record: Any) -> Any:
    """Return what is said, with the script's own parts of the record in place of what they replace."""
    if _is_own(record) and not _is_own(said):
        return record
    if isinstance(said, Mapping) and isinstance(record, Mapping):
        return {key: _with_own(value, record.get(key)) for key, value in said.items()}
    if isinstance(said, list) and isinstance(record, list):
        return record if [each for each in record if not _is_own(each) or each in said] == said else said
    return said


def _is_own(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("name") == "own"


def _at(record: Any, key: str) -> Any:
    """Return the value of a dotted key; None if there is none."""
    for part in key.split("."):
        record = record.get(part) if isinstance(record, Mapping) else None
    return record


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
