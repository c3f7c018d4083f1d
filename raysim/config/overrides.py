"""Reads, changes and rewrites the values of a TOML table by dotted keys, such as "a.b.c=value"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable

from raysim.config import messages, toml, toml_arrays
from raysim.config.plain import plain, shown
from raysim.errors import ExperimentError

TAKEN = MappingProxyType(
    {
        "set": 'a mapping of dotted keys, such as {"rounds": 5}, or texts, such as ["rounds=5"]',
        "unset": 'dotted keys, such as ["stop"]',
    }
)
"""What changes and removals are, for people."""

_CHANGE = re.compile(r"""((?:"(?:[^"\\]|\\.)*"|'[^']*'|[^"'=])*)=(.*)""", re.DOTALL)
"""A key, whose parts may have quotation marks around them, and a value."""


def apply(
    table: Mapping[str, Any], changes: Iterable[str] | Mapping[str, Any], removals: Iterable[str]
) -> dict[str, Any]:
    """Return a changed copy of the table: removals first, then changes.

    Texts apply in their order. Of a mapping, shorter keys apply first, and among keys of the same length a `name`: so
    no value is lost when another key replaces its table or its choice.

    >>> table = {"server": {"optimizer": {"name": "adam", "beta1": 0.5}}}
    >>> apply(table, ["server.optimizer.lr=0.1"], ["server.optimizer.beta1"])
    {'server': {'optimizer': {'name': 'adam', 'lr': 0.1}}}
    >>> apply(table, {"server.optimizer.name": "sgd"}, [])
    {'server': {'optimizer': {'name': 'sgd'}}}
    >>> apply({}, ['client."optimizer".lr=0.1'], [])
    {'client': {'optimizer': {'lr': 0.1}}}
    >>> sgd = {"name": "sgd"}
    >>> apply({}, {"optimizer": sgd, "optimizer.lr": 0.1}, []), sgd
    ({'optimizer': {'name': 'sgd', 'lr': 0.1}}, {'name': 'sgd'})
    """
    for kind, given in (("set", changes), ("unset", removals)):
        if not isinstance(given, Iterable):
            raise ExperimentError(f"{kind} must be {TAKEN[kind]}, but got {shown(given)}.")
    result: dict[str, Any] = plain(table)
    # A text is one change, not its letters.
    changes = (changes,) if isinstance(changes, str) else changes
    for dotted in (removals,) if isinstance(removals, str) else removals:
        _remove(result, _parts(_key(dotted)))
    changed = (
        sorted(((_key(dotted).split("."), value) for dotted, value in changes.items()), key=_rank)
        if isinstance(changes, Mapping)
        else (_parsed(change) for change in changes)
    )
    for path, value in changed:
        # A copy, because a longer key may change a table that a shorter one has set.
        _set(result, path, plain(value, shown(".".join(path))[1:-1]))
    return result


def parse_value(text: str) -> Any:
    r"""Parse a text as one value of TOML (number, boolean, quoted string, array, table); else return the text itself.

    >>> parse_value("[1, 2.5]"), parse_value("true"), parse_value("auto"), parse_value("1\nseed = 2")
    ([1, 2.5], True, 'auto', '1\nseed = 2')
    """
    try:
        found = toml.loads(f"value = {text}")
    except toml.TomlError:
        return text
    # A text of several lines may be a value and further keys, which would be lost.
    return found["value"] if len(found) == 1 else text


def parted(change: str) -> tuple[str, str]:
    """Return dotted key and value of a text such as "key.key=value", without quotation marks; empty ones if it is none.

    >>> parted("'a' . b=c=d"), parted("a")
    (('a.b', 'c=d'), ('', ''))
    """
    found = _CHANGE.fullmatch(change)
    return ("", "") if found is None else (".".join(_parts(found[1])), found[2])


def _parts(dotted: str) -> list[str]:
    """Return the parts of a dotted key of a text, which may be in quotes, as TOML has it.

    >>> _parts("client.optimizer"), _parts('client . "optimizer"'), _parts("stop.'a.b'")
    (['client', 'optimizer'], ['client', 'optimizer'], ['stop', 'a.b'])

    Raises:
        ExperimentError: a part has quotation marks, and TOML has no such key.
    """
    if not any(mark in dotted for mark in "\"'"):
        return [part.strip() for part in dotted.split(".")]
    try:
        inner: Any = toml.loads(f"{dotted} = 0") if "\n" not in dotted else {}
    except toml.TomlError:
        inner = {}
    parts = []
    while isinstance(inner, dict) and len(inner) == 1:
        ((part, inner),) = inner.items()
        parts.append(part)
    if inner != 0 or not all(parts):
        raise ExperimentError(
            f"{shown(dotted)} is not a key of TOML: its parts have a dot between them, and a part may have quotation "
            f"marks around it."
        )
    return parts


def _parsed(change: str) -> tuple[list[str], Any]:
    """Split "key.key=value" into the parts of the key, and the value."""
    found = _CHANGE.fullmatch(change) if isinstance(change, str) else None
    path = [] if found is None else _parts(found[1])
    if found is None or not all(path):
        raise ExperimentError(f"A change has the form key.key=value, but got {shown(change)}.")
    return path, _value(found[2].strip())


def _key(dotted: object) -> str:
    """Return a dotted key if it is one."""
    if not isinstance(dotted, str) or not all(dotted.split(".")):
        raise ExperimentError(f"A key is a text such as 'client.optimizer.lr', but got {shown(dotted)}.")
    return dotted


def _value(text: str) -> Any:
    """Parse a text; what begins as a table or a list is meant as one.

    >>> _value("[1, 2.5]")
    [1, 2.5]
    """
    value = parse_value(text)
    if value == text and text.startswith(("{", "[")):
        raise ExperimentError(
            f"{shown(text)} is not TOML: a table is {{key = value, key = value}}, a list [value, value], and a text "
            f"in them has quotes."
        )
    return value


def _rank(change: tuple[Sequence[str], Any]) -> tuple[int, bool]:
    path, _ = change
    return len(path), path[-1] != "name"


def _set(table: dict[str, Any], path: Sequence[str], value: Any) -> None:
    inner, last = _made_inside(table, path)
    if last == "name" and len(path) > 1 and inner.get("name") != value:
        # Another choice does not have the keys of the replaced one.
        inner.clear()
    inner[last] = value


def _made_inside(table: dict[str, Any], path: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the table that holds a key, with those on the way to it, and the key's last part."""
    inner = table
    for depth, key in enumerate(path[:-1], start=1):
        inner = inner.setdefault(key, {})
        if not isinstance(inner, dict):
            through = shown(".".join(path[:depth]))[1:-1]
            raise ExperimentError(f"{shown('.'.join(path))} goes through {through}, which is a value, not a table.")
    return inner, path[-1]


def _inside(table: dict[str, Any], path: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Return the table that holds a key, an empty one if none does, and the key's last part."""
    inner: Any = table
    for key in path[:-1]:
        inner = inner.get(key) if isinstance(inner, dict) else None
    return inner if isinstance(inner, dict) else {}, path[-1]


def _remove(table: dict[str, Any], path: Sequence[str]) -> None:
    inner, last = _inside(table, path)
    if last not in inner:
        dotted = ".".join(path)
        known = list(tables_and_leaves(table))
        raise ExperimentError(f"There is no key {shown(dotted)} to remove{messages.nearest(dotted, known)}.")
    del inner[last]


def tables_and_leaves(table: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the dotted key of every entry, of tables too.

    >>> list(tables_and_leaves({"seed": 1, "client": {"epochs": 3}}))
    ['seed', 'client', 'client.epochs']
    """
    for key, value in table.items():
        yield f"{path}{key}"
        if isinstance(value, Mapping):
            yield from tables_and_leaves(value, f"{path}{key}.")


def replaced(before: Mapping[str, Any], after: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield the dotted key of each name that was changed, or else of each table that was, with the keys that are gone.

    >>> list(replaced({"data": {"name": "mnist", "clients": 9}}, {"data": {"name": "digits"}}))
    [('data.name', ['clients'])]
    >>> list(replaced({"client": {"epochs": 2, "batch_size": 9}}, {"client": {"epochs": 3}}))
    [('client', ['batch_size'])]
    """
    for key, value in before.items():
        there = after.get(key)
        if not (isinstance(value, Mapping) and isinstance(there, Mapping)):
            continue
        lost = [each for each in value if each not in there]
        is_other = "name" in value and "name" in there and value["name"] != there["name"]
        if lost:
            yield f"{path}{key}.name" if is_other else f"{path}{key}", lost
        if not is_other:
            yield from replaced(value, there, f"{path}{key}.")


def leaves(table: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of every entry that is not a table, in order; `path` is a prefix. Skip None.

    >>> dict(leaves({"seed": 1, "client": {"epochs": 3, "lr_decay": None}}))
    {'seed': 1, 'client.epochs': 3}
    """
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{path}{key}.")
        elif value is not None:
            yield f"{path}{key}", value


def rewritten(text: str, values: Mapping[str, Any], removals: Iterable[str] = ()) -> str:
    r"""Return TOML text with values set by dotted keys; it keeps comments and order, and appends new tables.

    >>> print(rewritten("rounds = 3  # few\n", {"rounds": 5, "client.epochs": 2}), end="")
    rounds = 5  # few
    <BLANKLINE>
    [client]
    epochs = 2

    Args:
        text: the file.
        values: such as {"engine.trainer": "stacked"}.
        removals: dotted keys of values or tables to remove first; missing ones are ignored.

    Raises:
        TomlError: the text is no TOML.
        ExperimentError: a key goes through a value that is no table, or a value is none of an experiment.
    """
    meant, values, removals = toml.loads(text), {key: plain(value, key) for key, value in values.items()}, [*removals]
    for dotted in removals:
        inner, last = _inside(meant, dotted.split("."))
        inner.pop(last, None)
    for dotted, value in values.items():
        inner, last = _made_inside(meant, dotted.split("."))
        inner[last] = plain(value)
    for rewrite in (_edited, _with_tables_anew):
        # Where a.b = 1 stands on a line of its own, tomlkit puts a new table before the lines behind it, or fails.
        with suppress(ValueError, TOMLKitError):
            found = rewrite(text, values, removals, meant)
            if toml.loads(found) == meant:
                return found
    return toml_arrays.dumps(meant)


def _edited(text: str, values: Mapping[str, Any], removals: Iterable[str], meant: Mapping[str, Any]) -> str:
    """Change the values in their places."""
    document = tomlkit.parse(text)
    for dotted in removals:
        inner, last = _inside(document, dotted.split("."))
        inner.pop(last, None)
    for dotted, value in values.items():
        *tables, last = dotted.split(".")
        inner = document
        for name in tables:
            inner = inner.setdefault(
                name, tomlkit.inline_table() if isinstance(inner, InlineTable) else tomlkit.table()
            )
        inner[last] = toml_arrays.with_arrays(value)
    return tomlkit.dumps(document)


def _with_tables_anew(text: str, values: Mapping[str, Any], removals: Iterable[str], meant: Mapping[str, Any]) -> str:
    """Write the outermost tables that change behind the others, without their comments."""
    document = tomlkit.parse(text)
    for name in dict.fromkeys(dotted.partition(".")[0] for dotted in (*removals, *values)):
        document.pop(name, None)
        if name in meant:
            document[name] = toml_arrays.with_arrays(meant[name])
    return tomlkit.dumps(document)
