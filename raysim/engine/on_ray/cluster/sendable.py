"""Checks before a run that a script's parts can be sent to workers, and finds the object that cannot."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ray import cloudpickle

from raysim.engine.plan import sent_code
from raysim.engine.plan.plan import Plan
from raysim.errors import ExperimentError

DEPTH = 8
"""Depth to which objects within objects are examined."""


def checked(plan: Plan) -> Plan:
    """Return the plan as it is sent, once it is clear that it can be; see `check`.

    It tells the code of a script's parts, so that other processes can compare theirs.
    """
    check(plan)
    return sent_code.with_code(plan)


def check(plan: Plan) -> None:
    """Pickle each part that a script has passed.

    Raises:
        ExperimentError: a part cannot be pickled; the error names the keyword, the object inside, and a remedy.
    """
    for keyword, passed in sent_code.passed(plan):
        if (error := _failure(passed)) is not None:
            what = _culprit(passed, f"what was passed, {_named(passed)},")
            raise ExperimentError(
                f"{keyword}= cannot be sent to workers: {what} cannot be pickled ({error}). Create locks, files, "
                f"generators and connections inside the function that uses them, and define functions and classes at "
                f"the top of a module. engine.workers = 0 needs none of this."
            )


def _failure(given: Any) -> str | None:
    """Return why an object cannot be pickled; None if it can."""
    try:
        cloudpickle.dumps(given)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'it says no more'}"
    return None


def _culprit(given: Any, description: str) -> str:
    """Describe the innermost object that cannot be pickled, and its place."""
    for _ in range(DEPTH):
        found = next(((name, inner) for name, inner in _inside(given) if _failure(inner) is not None), None)
        if found is None:
            break
        name, given = found
        description = f"{name}, {_named(given)},"
    return description


def _inside(given: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects that are pickled with an object, with their names."""
    match given:
        case functools.partial():
            yield "the function of a functools.partial", given.func
            yield from ((f"argument {place} of a functools.partial", value) for place, value in enumerate(given.args))
            yield from ((f"argument {name!r} of a functools.partial", value) for name, value in given.keywords.items())
        case types.FunctionType():
            yield from _variables(given)
        case types.MethodType():
            yield f"the object of the method {given.__name__}", given.__self__
        case Mapping():
            yield from ((f"entry {key!r}", value) for key, value in given.items())
        case list() | tuple() | set() | frozenset():
            yield from ((f"element {place}", value) for place, value in enumerate(given))
        case _:
            attributes = getattr(given, "__dict__", None)
            for name, value in attributes.items() if isinstance(attributes, dict) else ():
                yield f"the attribute {name!r} of {_named(given)}", value


def _variables(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the variables around a function, and its defaults."""
    whose = f"of the function {function.__qualname__}"
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            yield f"the variable {name!r} {whose}", cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f"the global variable {name!r} {whose}", function.__globals__[name]
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default {whose}", value


def _named(given: Any) -> str:
    if isinstance(given, types.FunctionType | type):
        return f"{given.__module__}.{given.__qualname__}"
    return f"a {type(given).__module__}.{type(given).__qualname__}"
