"""Calls a function of a script's or a package's part: an error names the part, and ends with the traceback."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raysim.config.global_draws import ADVICE, draws
from raysim.config.plain import shown
from raysim.errors import ExperimentError, RaysimError, within

OWN_CODE = Path(__file__).parents[1]
"""The folder of raysim."""


def called(what: str, function: Callable[..., Any], *given: Any) -> Any:
    """Return what the function returns.

    Args:
        what: names the part and the place in the run, as a message begins.
        function: the script's.
        given: its arguments.

    Raises:
        ExperimentError: it is no function, or it raised.
    """
    if not callable(function):
        raise ExperimentError(f"{what} must be a function, but got {shown(function)}.")
    try:
        return function(*given)
    except RaysimError:
        raise
    except Exception as error:
        if is_misfit(error):
            arguments = f"{len(given)} argument{'' if len(given) == 1 else 's'}"
            raise ExperimentError(f"{what} is called with {arguments}, which do not fit: {within(error)}.") from error
        raise ExperimentError(f"{what} failed: {error!r}{there_is(error)}\n{trace(error)}") from None


def trace(error: BaseException) -> str:
    """Return an error's traceback from the first line outside raysim on: raysim's own calls explain nothing."""
    steps = error.__traceback__
    while steps is not None and Path(steps.tb_frame.f_code.co_filename).is_relative_to(OWN_CODE):
        steps = steps.tb_next
    return "".join(traceback.format_exception(type(error), error, steps or error.__traceback__))


def there_is(error: BaseException) -> str:
    """Return what a record of raysim's has, where an error says that it lacks an attribute; nothing of other errors."""
    record = error.obj if isinstance(error, AttributeError) else None
    kind = type(record)
    if not kind.__module__.startswith("raysim."):
        return ""
    # A section has pydantic's methods too, and a NamedTuple those of a tuple.
    of_all = dir(tuple)
    names = getattr(kind, "model_fields", None) or [n for n in dir(record) if n[0] != "_" and n not in of_all]
    return f"; {kind.__name__} has {', '.join(names)}" if names else ""


def raised(error: BaseException) -> str:
    """Return an error's kind, place and text for the middle of a sentence, where a traceback would say no more."""
    return f"{type(error).__name__}{_place(error)}: {within(error)}{there_is(error)}"


def _place(error: BaseException) -> str:
    """Return the last line outside raysim before an error, as " (file.py, line 3)"; nothing if there is none."""
    frames = traceback.extract_tb(error.__traceback__)
    others = [frame for frame in frames if not Path(frame.filename).is_relative_to(OWN_CODE)]
    return f" ({Path(others[-1].filename).name}, line {others[-1].lineno})" if others else ""


def is_misfit(error: Exception) -> bool:
    """Return whether a call, which the caller of this has made itself, did not fit the function's signature.

    Then no line of the function was carried out, and a traceback would show raysim's call alone.
    """
    return isinstance(error, TypeError) and error.__traceback__ is not None and error.__traceback__.tb_next is None


def made_by(requirement: str, make: Any, section: Any) -> Any:
    """Return what make(section) returns.

    Args:
        requirement: what the part must be, as a message begins.
        make: the script's or the package's.
        section: its argument.

    Raises:
        ExperimentError: it is not a function of a section, raised, or drew from a global generator.
    """
    if not callable(make):
        raise ExperimentError(f"{requirement}, but got {shown(make)}.")
    with draws() as drew:
        try:
            returned = make(section)
        except RaysimError:
            raise
        except Exception as error:
            # Most often it is another function, so the form of make says more than a traceback.
            raise ExperimentError(f"{requirement}, but called with the section it raised {raised(error)}.") from error
        drawn = drew()
    if drawn:
        raise ExperimentError(f"{requirement}, but called with the section it {ADVICE}.")
    return returned


def watched_call(what: str, function: Callable[..., Any], *given: Any) -> Any:
    """As `called`, and refuse draws from global generators: that takes a tenth of a millisecond, so not for all calls.

    Raises:
        ExperimentError: it raised, or drew from a global generator.
    """
    with draws() as drew:
        returned = called(what, function, *given)
        drawn = drew()
    if drawn:
        raise ExperimentError(f"{what} {ADVICE}.")
    return returned
