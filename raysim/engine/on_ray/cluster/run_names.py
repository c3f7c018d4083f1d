"""Names runs on a cluster: a run has the name of its detached driver, in raysim's namespace."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

import ray
from ray import exceptions
from ray.util import list_named_actors

from raysim.engine.on_ray.cluster import handles
from raysim.engine.on_ray.cluster.handles import RemoteMethod
from raysim.engine.rounds.run_status import ENDED, UnderWay
from raysim.errors import UnknownRunError

T = TypeVar("T")

NAMESPACE = "raysim"

ANSWER_S = 5.0
"""How long a driver may take to report its status; an unreachable one is skipped."""

FREE_S = 5.0
"""How long a name may take to be free again."""


class NamedDriver(Protocol):
    """A driver that can be found by its name."""

    @property
    def about(self) -> RemoteMethod[[], UnderWay]:
        """The run's status."""
        ...


def start(base: str, start_as: Callable[[str], T]) -> tuple[T, str]:
    """Start a driver under the wanted name, or under the first of NAME-2, NAME-3, ... that is free.

    Args:
        base: the name.
        start_as: starts a driver under a name; raises ValueError if that is taken.
    """
    _end_ended(base)
    for number in itertools.count(1):
        name = base if number == 1 else f"{base}-{number}"
        if name in _names():
            continue
        try:
            return start_as(name), name
        except ValueError:
            # Another script was faster; any other mistake leaves the name free.
            if name not in _names():
                raise
    raise AssertionError


def find(name: str) -> NamedDriver:
    """Return the driver of the run.

    Raises:
        UnknownRunError: no run has that name; the error lists the names.
    """
    try:
        return _driver(name)
    except ValueError:
        others = ", ".join(run.name for run in under_way()) or "none"
        raise UnknownRunError(
            f"No run {name!r} is under way on this cluster (under way: {others}). What a run leaves is in its folder: "
            f"`raysim report DIR` shows it, `raysim resume DIR` continues it."
        ) from None


def under_way() -> list[UnderWay]:
    """Return the runs that have not ended, oldest first."""
    runs = [run for name in _names() if (run := _about(name)) is not None and run.stage not in ENDED]
    return sorted(runs, key=lambda run: run.since_s)


def _driver(name: str) -> NamedDriver:
    """Return the driver of that name; raises ValueError if there is none."""
    driver: NamedDriver = ray.get_actor(name, namespace=NAMESPACE)
    return driver


def _names() -> set[str]:
    actors: list[dict[str, str]] = list_named_actors(all_namespaces=True)
    return {actor["name"] for actor in actors if actor["namespace"] == NAMESPACE}


def _about(name: str) -> UnderWay | None:
    try:
        run: UnderWay = ray.get(_driver(name).about.remote(), timeout=ANSWER_S)
    except (ValueError, exceptions.GetTimeoutError, exceptions.RayActorError):
        return None
    return run


def _end_ended(name: str) -> None:
    """End the driver of an ended run, which frees its name."""
    run = _about(name) if name in _names() else None
    if run is None or run.stage not in ENDED:
        return
    handles.kill(_driver(name))
    deadline_s = time.monotonic() + FREE_S
    while name in _names() and time.monotonic() < deadline_s:
        time.sleep(0.05)
