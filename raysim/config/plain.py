"""Checks that values are those of a file: texts, numbers, truth values, lists and tables, of bounded size and depth.

An experiment's keys state bounds of their own. These hold for every value, also where a key takes any, and come first:
what passes can be compared, copied, shown in a message and written as JSON and TOML.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from pydantic import BaseModel

from raysim.errors import ExperimentError

DEEPEST = 16
"""Tables and lists within each other."""

MOST_SAID = 20
"""Wrong values that a message names."""

LONGEST_TEXT = 4096
"""Characters of a text: a path's bound on Linux."""

LONGEST_KEY = 200
"""Characters of a key."""

MOST_ITEMS = 100_000
"""Entries of a list or a table."""

_BITS = 64

_SHOWN = reprlib.Repr()
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxother, _SHOWN.maxlong = 3, 80, 80, 40
_SHOWN.maxdict = _SHOWN.maxlist = _SHOWN.maxtuple = 20


def shown(value: Any) -> str:
    """Return a value as messages show it: one line of printable characters, shortened in the middle.

    >>> shown([1, "a"]), shown("b" * 5000)[:6], len(shown("b" * 5000))
    ("[1, 'a']", "'bbbbb", 80)
    """
    try:
        text = _SHOWN.repr(value)
    except Exception:
        text = f"a {type(value).__name__} that cannot be shown"
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def plain(given: Any, at: str = "") -> Any:
    """Return a copy in which NumPy's numbers and arrays are Python's.

    >>> plain({"rounds": np.int64(3), "client": {"lr": np.float32(0.5)}})
    {'rounds': 3, 'client': {'lr': 0.5}}

    Args:
        given: of a TOML or JSON file, or a script; sections within it stay as they are.
        at: its dotted key.

    Raises:
        ExperimentError: a value that no file could hold, or beyond a bound; names its key.
    """
    if refused := list(dict.fromkeys(_refusals(given, at, 0))):
        more = [f"and {len(refused) - MOST_SAID} more"] if len(refused) > MOST_SAID else []
        raise ExperimentError("; ".join([*refused[:MOST_SAID], *more]))
    return _copied(given)


def text_refusal(text: str) -> str | None:
    """Return what a text is that cannot be written as UTF-8 or to a file's name; None if it is fine."""
    if "\0" in text:
        return "a text with a NUL character"
    if any("\ud800" <= each <= "\udfff" for each in text) if not text.isascii() else False:
        return "a text that is not valid Unicode"
    return None


def _refusals(given: Any, at: str, depth: int) -> Iterator[str]:
    """Yield a sentence for each value that is not plain, at the dotted key `at`, so deep in tables and lists."""
    where = at or "the experiment"
    if depth > DEEPEST:
        yield f"{where} is deeper than {DEEPEST} tables or lists"
    elif given is None or isinstance(given, bool | BaseModel | np.bool_):
        return
    elif isinstance(given, float | np.floating):
        if not np.isfinite(given):
            yield f"{where} must be a finite number, but got {given}"
    elif isinstance(given, str):
        if len(given) > LONGEST_TEXT:
            yield f"{where} must have at most {LONGEST_TEXT} characters, but has {len(given)}: {shown(given)}"
        elif why := text_refusal(given):
            yield f"{where} is {why}: {shown(given)}"
    elif isinstance(given, int | np.integer):
        if not -(2 ** (_BITS - 1)) <= given < 2 ** (_BITS - 1):
            yield f"{where} must be a number of {_BITS} bits, but got one of {int(given).bit_length()}"
    elif not isinstance(given, Mapping | list | tuple | range) and not _is_numeric_array(given):
        yield f"{where} must be a text, a number, true or false, a list or a table, but got {shown(given)}"
    elif len(given) > MOST_ITEMS:
        yield f"{where} must have at most {MOST_ITEMS:,} entries, but has {len(given):,}"
    elif isinstance(given, Mapping):
        for key, value in given.items():
            yield from _key_refusals(key, where)
            name = shown(key)[1:-1] if isinstance(key, str) else shown(key)
            yield from _refusals(value, f"{at}.{name}" if at else name, depth + 1)
    else:
        for place, value in enumerate(given):
            yield from _refusals(value, f"{where}[{place}]", depth + 1)


def _key_refusals(key: Any, where: str) -> Iterator[str]:
    if isinstance(key, int) and not isinstance(key, bool):
        # Scripts may number rounds by integers, where a file has texts.
        return
    if not isinstance(key, str):
        yield f"a key of {where} must be a text, but is {shown(key)}"
    elif len(key) > LONGEST_KEY:
        yield f"a key of {where} must have at most {LONGEST_KEY} characters, but {shown(key)} has {len(key)}"
    elif why := text_refusal(key):
        yield f"a key of {where} is {why}: {shown(key)}"


def _is_numeric_array(given: Any) -> bool:
    return isinstance(given, np.ndarray) and given.ndim > 0 and given.dtype.kind in "biuf"


def _copied(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {str(key): _copied(value) for key, value in given.items()}
    if isinstance(given, list | tuple | range):
        return [_copied(value) for value in given]
    if isinstance(given, np.ndarray | np.generic):
        return given.tolist()
    return given
