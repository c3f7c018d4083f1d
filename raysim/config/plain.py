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

MOST_IN_ALL = 1_000_000
"""Entries of all lists and tables together: a record of 64 MiB could have thirty times as many."""

_BITS = 64

_MOST = 2 ** (_BITS - 1)


class _Shown(reprlib.Repr):
    """Writes arrays and tensors by their form and device, and records by their class: neither has an end."""

    def repr_instance(self, x: Any, level: int) -> str:
        if getattr(x, "is_nested", False) is True:
            # It has no shape: asking for it raises.
            return "a nested tensor"
        if hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, np.generic):
            layout = str(getattr(x, "layout", "torch.strided")).removeprefix("torch.")
            kind = f" ({layout})" * (layout != "strided")
            device = str(getattr(x, "device", "cpu"))
            place = f" on {device}" * (device != "cpu")
            return f"{'numpy.' * isinstance(x, np.ndarray)}{x.dtype} of shape {tuple(x.shape)}{kind}{place}"
        return f"a {type(x).__name__}" if isinstance(x, tuple) else super().repr_instance(x, level)


_SHOWN = _Shown()
_SHOWN.maxlevel, _SHOWN.maxstring, _SHOWN.maxother, _SHOWN.maxlong = 3, 80, 80, 40
_SHOWN.maxdict = _SHOWN.maxlist = _SHOWN.maxtuple = 20


def shown(value: Any) -> str:
    """Return a value as messages show it: one line of printable characters, shortened in the middle.

    >>> shown([1, "a"]), shown("b" * 5000)[:6], len(shown("b" * 5000))
    ("[1, 'a']", "'bbbbb", 80)
    >>> shown(np.zeros((2, 3)))
    'numpy.float64 of shape (2, 3)'
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
    if refused := list(dict.fromkeys(_refusals(given, at))):
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


def _refusals(given: Any, at: str) -> Iterator[str]:
    """Yield a sentence for each value that is not plain, at the dotted key `at`."""
    left, entries = [(given, at, 0)], 0
    # A loop: generators in one another would pass every sentence through every level.
    while left:
        value, at, depth = left.pop()
        where = at or "the experiment"
        if depth > DEEPEST:
            yield f"{where} is deeper than {DEEPEST} tables or lists"
        elif (why := _refusal(value)) is not None:
            yield f"{where} {why}"
        elif isinstance(value, Mapping | list | tuple | range | np.ndarray):
            entries += len(value)
            if entries > MOST_IN_ALL:
                yield f"the tables and lists up to {where} must have at most {MOST_IN_ALL:,} entries together"
                return
            if isinstance(value, Mapping):
                for key in value:
                    yield from _key_refusals(key, where)
                inner = [(each, _below(at, key), depth + 1) for key, each in value.items()]
            else:
                # Lists may be long. A number is not named unless there is a sentence to write on it.
                named = [pair for pair in enumerate(value) if depth == DEEPEST or not _is_small_number(pair[1])]
                inner = [(each, f"{where}[{place}]", depth + 1) for place, each in named]
            left += reversed(inner)


def _refusal(given: Any) -> str | None:
    """Return what a value must be, but is not; None if it is plain, except for what is in it."""
    if given is None or isinstance(given, bool | BaseModel | np.bool_):
        return None
    if isinstance(given, float | np.floating):
        quoted = f'"{given}"'
        return None if np.isfinite(given) else f"must be a finite number, but got {given}; a text is {quoted}"
    if isinstance(given, str):
        if len(given) > LONGEST_TEXT:
            return f"must have at most {LONGEST_TEXT} characters, but has {len(given)}: {shown(given)}"
        return f"is {why}: {shown(given)}" if (why := text_refusal(given)) else None
    if isinstance(given, int | np.integer):
        if -_MOST <= given < _MOST:
            return None
        return f"must be a number of {_BITS} bits, sign included, but got one of {int(given).bit_length() + 1}"
    if not isinstance(given, Mapping | list | tuple | range) and not _is_numeric_array(given):
        return f"must be a text, a number, true or false, a list or a table, but got {shown(given)}"
    if len(given) > MOST_ITEMS:
        return f"must have at most {MOST_ITEMS:,} entries, but has {len(given):,}"
    return None


def _is_small_number(given: Any) -> bool:
    return type(given) in (int, float) and -_MOST < given < _MOST


def _below(at: str, key: Any) -> str:
    name = shown(key)[1:-1] if isinstance(key, str) else shown(key)
    return f"{at}.{name}" if at else name


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
