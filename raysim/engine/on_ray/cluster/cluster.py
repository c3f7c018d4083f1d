"""Joining or starting a Ray cluster, and the preflight: what was asked for against what Ray has."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import ray

from raysim.engine.on_ray.cluster import joining
from raysim.engine.on_ray.cluster.whereabouts import Whereabouts
from raysim.errors import ResourceError
from raysim.experiment.experiment import EngineSection

REACH_S = 5.0
"""How long a cluster's address may take to answer."""

WAIT_FOR_RESOURCES_S = 60.0
"""How long resources that others hold are waited for."""

GROW_S = 5.0
"""How often a run that grows looks for room."""


@dataclass(frozen=True)
class Placement:
    """How many pools, and the share of a node that each one is pinned to. grows: more of them where nodes join."""

    workers: int
    cpus: float
    gpus: float
    grows: bool = False


@contextmanager
def connected(address: str | None) -> Iterator[None]:
    """Be connected to Ray inside, and leave everything outside as it was.

    Args:
        address: None starts a cluster on this machine that ends with the block (or uses the connection that the script
            already has); "auto" or "host:port" joins a running one.

    Raises:
        ResourceError: no cluster answers at the address, or it does not accept this user's token.
    """
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", joined):
            raise ResourceError(
                f"This script is connected to Ray at {joined} already, so address {address!r} cannot be joined: leave "
                f"address= out, or call ray.shutdown() first."
            )
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # At every start Ray warns that tokens are on, and how to switch them off: they are meant to be on.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    # A dashboard may only be asked for, or not, where a cluster is started.
    dashboard = False if address is None else None
    try:
        _reach(address)
        joining.init(address or "local", logging_level=logging.WARNING, include_dashboard=dashboard)
    except (OSError, ValueError) as error:
        if address is None:
            raise ResourceError(f"Ray could not be started on this machine: {error}") from None
        raise ResourceError(
            f"No Ray cluster could be joined at address {address!r} ({error}). Is it running (`ray start --head`)? "
            f"Where it uses token authentication, this user needs its token (RAY_AUTH_TOKEN or ~/.ray/auth_token), "
            f"and for a host:port the environment variable RAY_AUTH_MODE=token."
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _reach(address: str | None) -> None:
    """OSError at once where nothing listens at host:port: Ray itself would try for minutes."""
    host, colon, port = (address or "").rpartition(":")
    if colon and port.isdigit() and "/" not in host:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()


def place(engine: EngineSection) -> Placement:
    """Resolve "auto" against the cluster, and check that it can ever hold the workers.

    Raises:
        ResourceError: says what was asked for and what Ray has.
    """
    total = ray.cluster_resources()
    gpus, gpus_each = total.get("GPU", 0.0), engine.gpus_per_worker
    card = (1.0 if gpus_each == "auto" else gpus_each) if gpus else 0.0
    grows = engine.workers == "auto"
    workers = engine.workers if engine.workers != "auto" else max(1, _room(engine.cpus_per_worker, card))
    if gpus_each == "auto":
        gpus_each = 1 / math.ceil(workers / gpus) if gpus else 0.0
    _check(workers, engine.cpus_per_worker, gpus_each, total)
    return Placement(workers, engine.cpus_per_worker, gpus_each, grows)


class Growth:
    """Nodes that join are used: a run that takes whatever there is looks, now and then, whether there is more."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._looked_s = time.monotonic()

    def lacking(self, num_starting: int) -> int:
        """How many more workers there could be, beside those that are starting."""
        if not self._placement.grows or time.monotonic() - self._looked_s < GROW_S:
            return 0
        self._looked_s = time.monotonic()
        return max(0, _room(self._placement.cpus, self._placement.gpus) - num_starting)


def _room(cpus_each: float, gpus_each: float) -> int:
    free = ray.available_resources()
    by_cpu = int(free.get("CPU", 0.0) / cpus_each + 1e-9)
    return min(by_cpu, int(free.get("GPU", 0.0) / gpus_each + 1e-9)) if gpus_each else by_cpu


def actor_options(placement: Placement) -> dict[str, Any]:
    """How an actor of a worker is asked for: on the node that has most room, fractions of a card packed there."""
    return {
        "num_cpus": placement.cpus,
        "num_gpus": placement.gpus,
        "scheduling_strategy": "SPREAD",
        # raysim alone retries: Ray's own retry would run a method again on a fresh actor, unseen and uncounted.
        "max_restarts": 0,
        "max_task_retries": 0,
    }


def _check(workers: int, cpus_each: float, gpus_each: float, total: dict[str, float]) -> None:
    asked = f"{workers} workers x {cpus_each:g} CPU" + (f" and {gpus_each:g} GPU" if gpus_each else "")
    has = f"{total.get('CPU', 0):g} CPU and {total.get('GPU', 0):g} GPU in the whole cluster"
    for name, each in (("CPU", cpus_each), ("GPU", gpus_each)):
        if each * workers > total.get(name, 0.0) + 1e-9:
            raise ResourceError(
                f"The experiment asks for {asked}, but Ray has {has}. Lower engine.workers or engine."
                f"{name.lower()}s_per_worker (a fraction such as 0.5 is allowed), or join a larger cluster "
                f"with --address."
            )


def wait_for_pools(references: list[ray.ObjectRef[Whereabouts]], placement: Placement) -> list[Whereabouts]:
    """Wait until every pool has started; returns where each one runs.

    Raises:
        ResourceError: others hold what the pools need for longer than WAIT_FOR_RESOURCES_S.
    """
    deadline = time.monotonic() + WAIT_FOR_RESOURCES_S
    ready, waiting = ray.wait(references, num_returns=len(references), timeout=deadline - time.monotonic())
    if waiting:
        free = ray.available_resources()
        raise ResourceError(
            f"{len(ready)} of {placement.workers} workers started within {WAIT_FOR_RESOURCES_S:g} s: each needs "
            f"{placement.cpus:g} CPU and {placement.gpus:g} GPU, and Ray has {free.get('CPU', 0):g} CPU and "
            f"{free.get('GPU', 0):g} GPU free. Other jobs on the cluster may hold the rest."
        )
    return ray.get(ready)


def no_worker() -> str:
    """What to say when every worker is gone, and none could be started in its place."""
    free = ray.available_resources()
    return (
        f"All workers were lost, and for {WAIT_FOR_RESOURCES_S:g} s the cluster had no room for another: "
        f"{free.get('CPU', 0):g} CPU and {free.get('GPU', 0):g} GPU are free. What was checkpointed can be resumed."
    )
