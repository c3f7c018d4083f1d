"""What was raised in another process: raysim's own errors come as they were raised there, a driver's death is named."""

from __future__ import annotations

import re
from typing import Any, NoReturn

import ray
from ray import exceptions

from raysim.errors import ExperimentError, RaysimError, WorkerLostError

_NO_MODULE = re.compile(r"No module named '([^']+)'")


def cause_of(error: exceptions.RayTaskError) -> BaseException | None:
    """What the other process raised; None where it cannot travel."""
    # A RayTaskError that was made of the class of its cause is of that class too, with Ray's text.
    return getattr(error, "cause", None)


def unimportable(error: Exception) -> ExperimentError | None:
    """What to say of a module that could not be imported where something was sent; None where that was not it."""
    found = _NO_MODULE.search(str(error))
    if found is None:
        return None
    return ExperimentError(
        f"Workers cannot import the module {found[1]!r}, from which a part, the model, the loss or the dataset comes: "
        f"install it on every machine, put its folder on PYTHONPATH before Ray starts, or define what is passed in the "
        f"script itself, which is sent as it is."
    )


def own_error(error: exceptions.RayTaskError) -> RaysimError | None:
    """The error of raysim's that the other process raised, or should have; None where it is another's."""
    cause = cause_of(error)
    if isinstance(cause, exceptions.RaySystemError):
        # It could not take in what was sent. User code that fails there is told by errors of raysim's.
        return unimportable(error)
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
        ExperimentError: it cannot import something that was sent.
        WorkerLostError: its process is no more.
    """
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        raise_again(error)
    except exceptions.RayActorError as error:
        if getattr(error, "actor_init_failed", False) and (unknown := unimportable(error)):
            raise unknown from None
        advice = "" if folder is None else f". What it had checkpointed can be resumed: raysim resume {folder}"
        raise WorkerLostError(f"the driver's process died ({error}){advice}") from None
