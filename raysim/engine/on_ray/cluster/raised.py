"""What was raised in another process: raysim's own errors come as they were raised there, a driver's death is named."""

from __future__ import annotations

from typing import Any, NoReturn

import ray
from ray import exceptions

from raysim.errors import RaysimError, WorkerLostError


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


def answer(reference: Any, folder: str | None = None) -> Any:
    """What the driver answers.

    Args:
        reference: to the answer.
        folder: of its run, as people name it; None where it has none, or is not known.

    Raises:
        RaysimError: what went wrong there.
        WorkerLostError: its process is no more.
    """
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        raise_again(error)
    except exceptions.RayActorError as error:
        advice = "" if folder is None else f". What it had checkpointed can be resumed: raysim resume {folder}"
        raise WorkerLostError(f"the driver's process died ({error}){advice}") from None
