"""What was raised in another process: raysim's own errors come as they were raised there."""

from __future__ import annotations

from typing import NoReturn

from ray import exceptions

from raysim.errors import RaysimError


def cause_of(error: exceptions.RayTaskError) -> BaseException | None:
    """What the other process raised; None where it cannot travel."""
    # A RayTaskError that was made of the class of its cause is of that class too, with Ray's text.
    return getattr(error, "cause", None)


def own_error(error: exceptions.RayTaskError) -> RaysimError | None:
    """The error of raysim's that the other process raised; None where it is another's."""
    cause = cause_of(error)
    return cause if isinstance(cause, RaysimError) else None


def raise_again(error: exceptions.RayTaskError) -> NoReturn:
    """Raise it here as it was raised there; another's than raysim's with the traceback from there."""
    own = own_error(error)
    if own is not None:
        raise own from None
    raise error
