"""Raises errors of other processes here: raysim's errors unchanged, a driver's death with its own message."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn, TypeVar

import ray
from ray import exceptions

from raysim.engine.on_ray.cluster import own_ray
from raysim.engine.on_ray.cluster.connection import Connection
from raysim.errors import ExperimentError, RaysimError, ResourceError, WorkerLostError
from raysim.storage.remote.folder import resume_command

if TYPE_CHECKING:
    from ray import ObjectRef

T = TypeVar("T")

_NO_MODULE = re.compile(r"No module named '([^']+)'")


def cause_of(error: exceptions.RayTaskError) -> BaseException | None:
    """Return the error of the other process; None if it cannot be pickled."""
    # Ray derives a RayTaskError from the class of its cause too, with Ray's text.
    return getattr(error, "cause", None)


def unimportable(error: Exception) -> ExperimentError | None:
    """Return the error for a module that a worker cannot import; None if the cause is another."""
    found = _NO_MODULE.search(str(error))
    if found is None:
        return None
    return ExperimentError(
        f"Workers cannot import the module {found[1]!r}, from which a part, the model, the loss or the dataset comes: "
        f"install it on every machine, put its folder on PYTHONPATH before Ray starts, or define what is passed in the "
        f"script itself, which is sent as it is."
    )


def own_cause(error: exceptions.RaySystemError) -> RaysimError | None:
    """Return the error of raysim for which Ray could not unpickle an object; None if it is another error."""
    cause = getattr(error, "client_exc", None)
    return cause if isinstance(cause, RaysimError) else None


def own_error(error: exceptions.RayTaskError) -> RaysimError | None:
    """Return the error of raysim that the other process raised, or should have raised; None if it is another error."""
    cause = cause_of(error)
    if isinstance(cause, exceptions.RaySystemError):
        # It could not unpickle its arguments. Failing user code raises an error of raysim instead.
        return unimportable(error)
    return cause if isinstance(cause, RaysimError) else None


def raise_again(error: exceptions.RayTaskError) -> NoReturn:
    """Raise an error of raysim unchanged; any other error with the traceback of the other process."""
    known = own_error(error)
    if known is not None:
        raise known from None
    raise error


def answer(
    reference: ObjectRef[T],
    folder: str | None = None,
    wait_s: float = math.inf,
    connection: Connection | None = None,
) -> T:
    """Wait for the driver's answer.

    Args:
        reference: to the answer.
        folder: the name of its run's folder for people; None if there is none, or it is not known.
        wait_s: for how long. It is for calls that only wait for the process of the driver to start.
        connection: by which the reference came; None: the present one.

    Raises:
        RaysimError: the driver raised this error.
        ExperimentError: it cannot import a module that it needs.
        WorkerLostError: its process died, or the Ray that this script has started.
        ResourceError: there is no answer after `wait_s`, or the script has ended its connection.
    """
    end_s = time.monotonic() + wait_s
    connection = connection or Connection()
    try:
        while time.monotonic() < end_s:
            connection.check(folder)
            with suppress(exceptions.GetTimeoutError):
                answered: T = ray.get(reference, timeout=own_ray.POLL_S)
                return answered
            own_ray.check()
        raise ResourceError(
            f"The driver's process has not started in {wait_s:g} s (engine.wait_s): the machine may be busy, or short "
            f"of memory, or a limit (ulimit -v) may be too low for Ray; Ray's logs say more."
        )
    except exceptions.RayTaskError as error:
        raise_again(error)
    except exceptions.RayActorError as error:
        own_ray.check()
        if getattr(error, "actor_init_failed", False) and (unknown := unimportable(error)):
            raise unknown from None
        advice = "" if folder is None else f". What it had checkpointed can be resumed: {resume_command(folder)}"
        raise WorkerLostError(f"the driver's process died ({error}){advice}") from None


def wait_for_all(references: Sequence[ObjectRef[object]]) -> None:
    """Wait until all of these calls have ended, however.

    Raises:
        WorkerLostError: the Ray that this script has started died.
    """
    while ray.wait(list(references), num_returns=len(references), timeout=own_ray.POLL_S)[1]:
        own_ray.check()
