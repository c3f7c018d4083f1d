"""An experiment file with other values, its comments and its order kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import tomlkit


def rewritten(text: str, values: Mapping[str, Any], removals: Iterable[str] = ()) -> str:
    """TOML with values set by their dotted keys; tables that are not there are added at the end.

    Args:
        text: the file.
        values: such as {"engine.form": "stacked"}.
        removals: dotted keys of values or tables that are to go, before any is set; what is not there is passed over.
    """
    document = tomlkit.parse(text)
    for dotted in removals:
        *tables, key = dotted.split(".")
        inner: Any = document
        for name in tables:
            inner = inner.get(name, {})
        inner.pop(key, None)
    for dotted, value in values.items():
        *tables, key = dotted.split(".")
        inner = document
        for name in tables:
            inner = inner.setdefault(name, tomlkit.table())
        inner[key] = value
    return tomlkit.dumps(document)
