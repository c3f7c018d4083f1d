"""Makes TOML's arrays of long lists: tomlkit looks through the whole array once more for every entry that it adds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tomlkit
from tomlkit.items import Array, Item, Trivia, Whitespace


def array(items: Iterable[Item]) -> Array:
    """Return an array in one line; it has the text that tomlkit's own would have.

    >>> array(map(tomlkit.item, [1, 2])).as_string()
    '[1, 2]'
    """
    parts: list[Any] = []
    for each in items:
        parts += [Whitespace(","), Whitespace(" "), each] if parts else [each]
    return Array(parts, Trivia())


def dumps(table: Mapping[str, Any]) -> str:
    r"""Return a table as TOML, as tomlkit does, whose time grows with the square of a list's length.

    >>> dumps({"a": [1, [2, 3]], "b": [{"c": 4}]})
    'a = [1, [2, 3]]\n\n[[b]]\nc = 4\n'
    """
    return tomlkit.dumps(with_arrays(table))


def with_arrays(value: Any) -> Any:
    """Return a copy of a plain value in which lists are arrays, except for lists with tables in them."""
    if isinstance(value, Mapping):
        return {key: with_arrays(each) for key, each in value.items()}
    if not isinstance(value, list | tuple):
        return value
    inner = [with_arrays(each) for each in value]
    if any(isinstance(each, dict) or type(each) is list for each in inner):
        return inner
    return array(map(tomlkit.item, inner))
