"""Answers calls that do not fit a function's signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from raysim.config.plain import shown
from raysim.errors import ExperimentError, within

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def name_of_call(function: Callable[..., object]) -> str:
    """Return the name by which people call a function: for `__init__` that of the class."""
    return function.__qualname__.removesuffix(".__init__").rpartition(".")[2]


def advised_class(advice: str) -> Callable[[type[T]], type[T]]:
    """As `advised`, for a class whose makers stand beside it."""

    def decorate(kind: type[T]) -> type[T]:
        kind.__init__ = advised(advice)(kind.__init__)  # type: ignore[method-assign]
        return kind

    return decorate


def advised(advice: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function whose arguments are easily mistaken: what does not fit its signature is answered by advice.

    Raises:
        TypeError: a call does not fit the signature; ends with the advice.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        name = name_of_call(function)

        @functools.wraps(function)
        def checked(*args: P.args, **keywords: P.kwargs) -> R:
            try:
                signature.bind(*args, **keywords)
            except TypeError as error:
                raise TypeError(f"{name}() {error}: {advice}") from None
            return function(*args, **keywords)

        return checked

    return decorate


def check_takes(requirement: str, function: Any, *arguments: object) -> None:
    """Refuse a function of a script's that is called much later with these arguments by position.

    Args:
        requirement: what it must be, as the message begins.
        function: not called.
        arguments: any objects in their place.

    Raises:
        ExperimentError: it is no function, or its signature does not take them.
    """
    if not callable(function):
        raise ExperimentError(f"{requirement}, but got {shown(function)}.")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        # Some functions in C have none.
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ExperimentError(f"{requirement}, but its parameters are {signature}: {within(error)}.") from None
