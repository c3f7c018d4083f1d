"""Warns that a script changes, between two rounds, a value that a part reads: workers never see the new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

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


def watch(parts: Mapping[str, Any]) -> Callable[[], AbstractContextManager[None]]:
    """Return what is put around each block of the script's code between two rounds; it warns, once.

    Values are those that functions read by name from where they were defined, and attributes of a part that is an
    object. What a part itself changes while it is called is no change of the script's.

    Args:
        parts: by keyword; None: not passed.
    """
    given = [(f"{name}=", part) for name, part in parts.items() if part is not None and name not in part_code.NO_CODE]
    read = [each for keyword, part in given for each in _values(keyword, part)]
    is_told = False

    @contextmanager
    def around() -> Iterator[None]:
        nonlocal is_told
        before = [] if is_told else [_content(each.value()) for each in read]
        yield
        for each, content in zip(read, before, strict=not is_told):
            if _content(each.value()) != content:
                is_told = True
                log.warning(
                    "%s, which %s reads, was changed between two rounds. Parts that are called in this process take "
                    "the new value; workers do not, nor a run that is resumed or replayed. A value that follows from "
                    "the round is computed from at.round; one that follows from results belongs in the part's state",
                    each.name,
                    each.keyword,
                )
                return

    return around


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
        return id(value), value._version
    if isinstance(value, np.ndarray) and value.size <= _MOST:
        return value.tobytes()
    if depth and isinstance(value, list | tuple) and len(value) <= _MOST:
        return [_content(each, depth - 1) for each in value]
    if depth and isinstance(value, dict) and len(value) <= _MOST:
        return [(repr(key), _content(each, depth - 1)) for key, each in value.items()]
    if depth and _is_object(value):
        return _content(vars(value), depth - 1)
    return None
