"""Lists strange values for keys, and those at the edges of what a key's JSON schema allows."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any

import numpy as np

DEEP = 2_000
"""Levels of a deep table: more than Python's stack allows to most recursive functions."""


def nested(levels: int, table: bool) -> Any:
    """Return a list in a list, or a table in a table, so deep."""
    value: Any = 1
    for _ in range(levels):
        value = {"a": value} if table else [value]
    return value


INTEGERS = (0, 1, -1, 2, 7, 2**31, 2**32, 2**40, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30, 10**400)
FLOATS = (0.0, -0.0, 0.5, 1.0, 5.0, -0.1, 1e-300, 5e-324, 1e-30, 1e30, 1e39, 1e100, 1e308, -1e308)
NOT_FINITE = (math.nan, math.inf, -math.inf)
TEXTS = (
    "",
    " ",
    "5",
    "0.5",
    "true",
    "nan",
    "auto",
    "x",
    "own",
    "a" * 100_000,
    "\ud800",
    "a\udc80b",
    "a\0b",
    "a\nb",
    "\x1b[31m",
    "é",
    "名前",
    "🙂" * 50,
    "../x",
    "/",
    "{0}",
    "%s",
)
LISTS: tuple[Any, ...] = ([], [[]], [None], [1, "a"], [{}], ["a", "a"], [0] * 5_000, [2**40], [1e308, 1], ["\ud800"])
TABLES: tuple[Any, ...] = (
    {},
    {"name": "own"},
    {"name": "sgd"},
    {"name": []},
    {"name": {}},
    {"name": None},
    {"name": 1},
    {"name": "\ud800"},
    {"": 0},
    {1: 2},
    {None: 1},
    {"\ud800": 1},
    {"a\0": 1},
    {"a" * 10_000: 1},
    {"a.b": 1},
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    b"x",
    datetime.date(2024, 2, 29),
    datetime.time(1, 2),
    datetime.datetime(2024, 2, 29),
    Decimal("0.5"),
    1j,
    object(),
    object,
    len,
    {1, 2},
    range(3),
    np.float32(0.5),
    np.float64("nan"),
    np.float64(0.5),
    np.int64(3),
    np.array([1, 2]),
    np.array(2.0),
    np.bool_(True),
    np.str_("x"),
)
STRANGE: tuple[Any, ...] = (
    *INTEGERS,
    *FLOATS,
    *NOT_FINITE,
    *TEXTS,
    *LISTS,
    *TABLES,
    *OTHERS,
    nested(DEEP, table=False),
    nested(DEEP, table=True),
    nested(12, table=True),
)


def at_edges(schema: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the values at the bounds that a key's schema states, and one step beyond each.

    >>> at_edges({"type": "integer", "minimum": 1, "maximum": 9})
    (0, 1, 2, 8, 9, 10)
    >>> at_edges({"anyOf": [{"type": "array", "minItems": 1, "items": {"type": "boolean"}}]})
    ([], [True], [True, True])
    """
    return tuple(_edges(schema))


def _edges(schema: Mapping[str, Any]) -> Iterator[Any]:
    for member in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _edges(member)
    whole = schema.get("type") == "integer"
    for bound in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
        if bound in schema:
            at = schema[bound]
            below, above = (at - 1, at + 1) if whole else (math.nextafter(at, -math.inf), math.nextafter(at, math.inf))
            yield from (below, at, above)
    if "maxLength" in schema:
        yield from ("a" * schema["maxLength"], "a" * (schema["maxLength"] + 1))
    if schema.get("type") == "array" and "items" in schema:
        item = _plain(schema["items"])
        for bound in ("minItems", "maxItems"):
            if bound in schema:
                yield from ([item] * length for length in range(max(0, schema[bound] - 1), schema[bound] + 2))


def _plain(schema: Mapping[str, Any]) -> Any:
    """Return a value of a list's item."""
    if "minimum" in schema:
        return schema["minimum"]
    return {"integer": 1, "number": 1.0, "string": "a", "boolean": True, "array": ["a"]}.get(schema.get("type", ""), {})
