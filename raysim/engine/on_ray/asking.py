"""Asking a driver: its own errors come as they were raised, and its death is named."""

from __future__ import annotations

from typing import Any

import ray
from ray import exceptions

from raysim.engine.on_ray.raised import raise_again
from raysim.errors import WorkerLostError


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
