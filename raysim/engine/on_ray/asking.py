"""Asking a driver: its own errors come as they were raised, and its death is named."""

from __future__ import annotations

from typing import Any

import ray
from ray import exceptions

from raysim.errors import RaysimError, WorkerLostError


def answer(reference: Any) -> Any:
    """What the driver answers.

    Raises:
        RaysimError: what went wrong there.
        WorkerLostError: its process is no more.
    """
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, RaysimError):
            raise error.cause from None
        raise
    except exceptions.RayActorError as error:
        raise WorkerLostError(
            f"the driver's process died ({error}). What it had checkpointed can be resumed: raysim resume DIR"
        ) from None
