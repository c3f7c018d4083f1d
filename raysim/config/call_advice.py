"""Answers calls that do not fit a function's signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

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
