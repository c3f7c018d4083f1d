"""The names of tests, which are to be the same in every process.

pytest-xdist gives tests to its processes by their names and their order. A set has another order in every process, and
an object without a name of its own another address.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

ADDRESS = re.compile(r" at 0x[0-9a-f]{6,}")

DEPTH = 4
"""How deep a value is searched: tests of hostile files are given values that hold themselves."""


def check(items: list[pytest.Item]) -> None:
    """Raise UsageError for a test that is parametrized by a set, or is named by the text of one or by an address."""
    for item in items:
        marks = item.iter_markers("parametrize")
        if any(len(mark.args) > 1 and isinstance(mark.args[1], (set, frozenset)) for mark in marks):
            raise pytest.UsageError(f"{item.nodeid}: parametrized by a set, whose order differs by process")
        callspec = getattr(item, "callspec", None)
        if callspec is None:
            continue
        by_set = any(_has_set(value) and str(value) in callspec.id for value in callspec.params.values())
        if by_set or ADDRESS.search(callspec.id):
            raise pytest.UsageError(f"{item.nodeid}: named by a set or an address, which differ by process")


def _has_set(value: Any, depth: int = DEPTH) -> bool:
    """Whether the text of the value has that of a set whose order can differ."""
    if isinstance(value, (set, frozenset)):
        return len(value) > 1
    if depth == 0 or not isinstance(value, (dict, list, tuple)):
        return False
    inside = (*value, *value.values()) if isinstance(value, dict) else value
    return any(_has_set(one, depth - 1) for one in inside)
