"""Warns that a script changes, during a run or several, a value that a part reads: workers never see the new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from raysim.api.watched_code import BETWEEN_ROUNDS
from raysim.config.unwritten import version
from raysim.run_folder import part_code

log = logging.getLogger("raysim")

_PLAIN = (bool, int, float, complex, str, bytes, type(None))

_MOST, _DEPTH = 100, 3
"""Entries of a collection, and the depth of collections and objects, up to which values are compared."""


class _Variable(NamedTuple):
    """A value that the part with this keyword reads: its name, and a function that returns it as it is now."""

    keyword: str
    name: str
    value: Callable[[], object]


class Watch:
    """Warns, once, of values that the script's code has changed while it had the word between two rounds.

    Values are those that functions read by name from where they were defined, and attributes of a part that is an
    object. What a part itself changes while it is called is no change of the script's, so whoever calls the script's
    code says when it begins and when it has ended.

    Args:
        parts: by keyword; None: not passed.
        when: what came between, for the message.
    """

    def __init__(self, parts: Mapping[str, Any], when: str = BETWEEN_ROUNDS) -> None:
        given = [(f"{name}=", part) for name, part in parts.items() if part is not None]
        watched = [each for each in given if each[0][:-1] not in part_code.NO_CODE]
        self._read = [each for keyword, part in watched for each in _values(keyword, part)]
        self._when, self._is_told = when, False
        self._before: list[object] | None = None

    def begins(self) -> None:
        """Note the values: code of the script follows."""
        self._before = None if self._is_told else [_content(each.value()) for each in self._read]

    def ended(self) -> None:
        """Warn if a value is another than at the last `begins`, which may be long ago; without one do nothing."""
        before, self._before = self._before or [], None
        for each, content in zip(self._read, before, strict=bool(before)):
            if _content(each.value()) != content:
                self._is_told = True
                log.warning(
                    "%s, which %s reads, was changed %s. Parts that are called in this process take the new value; "
                    "workers do not, nor a run that is resumed or replayed. A value that follows from the round is "
                    "computed from at.round; one that follows from results belongs in the part's state",
                    each.name,
                    each.keyword,
                    self._when,
                )
                return

    @contextmanager
    def around(self) -> Iterator[None]:
        """Put around code of the script; an error of it is let through."""
        self.begins()
        yield
        self.ended()


def _values(keyword: str, part: Any) -> Iterator[_Variable]:
    for owner in _objects(part):
        yield _Variable(keyword, f"an attribute of {type(owner).__name__}", partial(vars, owner))
    for function in part_code.of_scripts(part):
        for name, value in part_code.variables(function):
            if not isinstance(_now(value), FunctionType | type | ModuleType):
                yield _Variable(keyword, name, partial(_now, value))


def _now(value: Callable[[], object]) -> object:
    try:
        return value()
    except (KeyError, ValueError):
        # It has none yet.
        return None


def _objects(part: Any) -> Iterator[object]:
    """Yield the objects of a script that a part consists of."""
    if isinstance(part, list | tuple):
        for each in part:
            yield from _objects(each)
    elif isinstance(part, Mapping):
        yield from _objects(tuple(part.values()))
    elif isinstance(part, partial):
        yield from _objects((part.func, *part.args, *part.keywords.values()))
    elif isinstance(part, MethodType):
        yield from _objects(part.__self__)
    elif _is_object(part):
        yield part


def _is_object(value: object) -> bool:
    # Layers' weights are the run's.
    others = FunctionType | type | ModuleType | Tensor | np.ndarray | nn.Module
    return hasattr(value, "__dict__") and not isinstance(value, others) and part_code.has_code_of_script(value)


def _content(value: object, depth: int = _DEPTH) -> object:
    """Return what tells a value from another one; None for what is not compared."""
    if isinstance(value, _PLAIN):
        return type(value), repr(value)
    if isinstance(value, Tensor):
        return id(value), version(value)
    if isinstance(value, np.ndarray) and value.size <= _MOST:
        return value.tobytes()
    if depth and isinstance(value, list | tuple) and len(value) <= _MOST:
        return [_content(each, depth - 1) for each in value]
    if depth and isinstance(value, dict) and len(value) <= _MOST:
        return [(repr(key), _content(each, depth - 1)) for key, each in value.items()]
    if depth and _is_object(value):
        return _content(vars(value), depth - 1)
    return None
