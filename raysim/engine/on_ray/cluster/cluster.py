"""Joins or starts a Ray cluster, and compares the requested resources with those of Ray."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from raysim.engine.on_ray.cluster import answering, forked, joining, own_ray, warm_workers
from raysim.engine.on_ray.cluster.connection import Connection
from raysim.engine.on_ray.cluster.lasting_thread import lasting
from raysim.engine.on_ray.cluster.wait import Room
from raysim.errors import ResourceError
from raysim.experiment.experiment import EngineSection

log = logging.getLogger("raysim")

GROW_S = 5.0
"""How often a run that grows looks for room."""


@dataclass(frozen=True)
class Placement:
    """Number of pools, and the share of a node for each.

    grows: start more pools when nodes join. wait_s: how long to wait for a pool while there is none.
    """

    workers: int
    cpus: float
    gpus: float
    grows: bool = False
    wait_s: float = EngineSection().wait_s


_TURN = threading.RLock()
_CONNECTION = ExitStack()
_users = 0
"""Blocks of this process that use the connection that raysim has made."""


def _guard_forked() -> None:
    if _users:
        atexit.register(forked.end_at_exit)


os.register_at_fork(after_in_child=_guard_forked)


@contextmanager
def connected(address: str | None, run_folder: Path | None = None) -> Iterator[Connection]:
    """Connect to Ray inside the block, and yield the connection; change nothing outside it.

    Args:
        address: None starts a cluster on this machine that ends with the last of this process's blocks (or uses the
            script's existing connection); "auto" or "host:port" joins a running one.
        run_folder: of the run that the block carries out, to be named if that cluster dies; None if there are several.

    Raises:
        ResourceError: no cluster answers at the address, or it does not accept this user's token; or none can be
            started.
        WorkerLostError: a process of the cluster that was started here died.
    """
    with _TURN:
        counts = _connect(address, run_folder)
        connection = Connection()
    try:
        yield connection
    except Exception:
        own_ray.check()
        raise
    finally:
        if counts:
            with _TURN:
                _leave()


def _connect(address: str | None, run_folder: Path | None) -> bool:
    """Connect to Ray, or use the connection that is there; return whether raysim has made it."""
    global _users
    forked.check()
    forked.uses_ray()
    if ray.is_initialized():
        joined = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", joined):
            raise ResourceError(
                f"This script is connected to Ray at {joined} already, so address {address!r} cannot be joined: leave "
                f"address= out, or call ray.shutdown() first."
            )
        if _users:
            _users += 1
            own_ray.share()
        return bool(_users)
    _CONNECTION.enter_context(_made(address, run_folder))
    _users += 1
    return True


def _leave() -> None:
    """End the connection with the last block that uses it: runs of one process may end in any order."""
    global _users
    _users -= 1
    if not _users:
        _CONNECTION.close()


@contextmanager
def _made(address: str | None, run_folder: Path | None) -> Iterator[None]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        # Ray's default, 15, leaves its workers a thirtieth of a core that they share with a process of niceness 0.
        os.environ.setdefault("RAY_worker_niceness", "0")
        # A process that comes before the object store listens pauses by this; the store is a few ms late. Attempts
        # take ten seconds in all, as by Ray's defaults.
        os.environ.setdefault("RAY_raylet_client_connect_timeout_milliseconds", "20")
        os.environ.setdefault("RAY_raylet_client_num_connect_attempts", "500")
    # Ray warns at every start that token authentication is on, which is intended.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    connection: Connection | None = None

    def end() -> None:
        if connection is None:
            # What is there by now was begun here, though Ctrl-C came before it was ready.
            ray.shutdown()
        else:
            connection.end()

    def is_left() -> bool:
        return connection is not None and not ray.is_initialized()

    if address is None:
        with (
            warm_workers.serving() as server,
            joining.quiet_after_death(),
            joining.agent_port() as agent_port,
            lasting() as in_lasting_thread,
            own_ray.watched(run_folder, end, is_left, server) as begun,
        ):
            setup_worker = None if server is None else warm_workers.__file__
            in_lasting_thread(lambda: _start(begun, setup_worker, agent_port))
            connection = Connection()
            yield
        return
    with _refused(address):
        checked = answering.checked(address)
    # Before this nothing was begun that must be ended.
    try:
        with _refused(address):
            joining.init(checked, logging_level=logging.WARNING)
        if address == "auto" and ray.is_initialized():
            log.info("joined %s", joining.cluster_name())
        connection = Connection()
        yield
    finally:
        end()


@contextmanager
def _refused(address: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        by_name = os.environ.get("RAY_ADDRESS") if address == "auto" else None
        told = repr(address) + (f", {by_name} by RAY_ADDRESS" if by_name else "")
        raise ResourceError(
            f"No Ray cluster could be joined at address {told} ({error}). Is it running (`ray start --head`)? "
            f"Where it uses token authentication, this user needs its token (RAY_AUTH_TOKEN or ~/.ray/auth_token), "
            f"and for a host:port the environment variable RAY_AUTH_MODE=token."
        ) from None


def _start(begun: Callable[[own_ray.Processes], None], setup_worker: str | None, agent_port: int | None) -> None:
    try:
        joining.start(begun, setup_worker, agent_port, logging_level=logging.WARNING, include_dashboard=False)
    except Exception as error:
        # Ray raises a plain Exception when a process of its own does not answer in time.
        raise ResourceError(f"Ray could not be started on this machine: {error}{_of_variables(str(error))}") from None


_OF_FOLDERS = ("RAY_TMPDIR", "TMPDIR", "HOME")
"""The environment variables that say where Ray writes."""


def _of_variables(said: str) -> str:
    """Return what names the environment variable of a folder in an error of Ray, which has the path only."""
    named = [name for name in _OF_FOLDERS if len(folder := os.environ.get(name, "")) > 1 and folder in said]
    return f". It is a folder of the environment variable {named[0]}: set it to another one." if named else ""


def place(engine: EngineSection) -> Placement:
    """Resolve "auto" for this cluster, and check that it is large enough for the workers.

    Raises:
        ResourceError: it is too small; the error has the requested and the existing resources.
    """
    total = ray.cluster_resources()
    gpus, gpus_each = total.get("GPU", 0.0), engine.gpus_per_worker
    card = (1.0 if gpus_each == "auto" else gpus_each) if gpus else 0.0
    grows = engine.workers == "auto"
    workers = engine.workers if engine.workers != "auto" else max(1, _room(engine.cpus_per_worker, card))
    if gpus_each == "auto":
        gpus_each = 1 / math.ceil(workers / gpus) if gpus else 0.0
    _check(workers, engine.cpus_per_worker, gpus_each, total)
    return Placement(workers, engine.cpus_per_worker, gpus_each, grows, engine.wait_s)


class Growth:
    """Finds room for further workers when nodes join, for runs with engine.workers = "auto"."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self._looked_s = time.monotonic()

    def lacking(self, num_starting: int) -> int:
        """Return the number of workers for which there is room, beside those that are starting."""
        if not self._placement.grows or time.monotonic() - self._looked_s < GROW_S:
            return 0
        self._looked_s = time.monotonic()
        return max(0, _room(self._placement.cpus, self._placement.gpus) - num_starting)


def _room(cpus_each: float, gpus_each: float) -> int:
    free = ray.available_resources()
    by_cpu = int(free.get("CPU", 0.0) / cpus_each + 1e-9)
    return min(by_cpu, on_cards(free.get("GPU", 0.0), gpus_each)) if gpus_each else by_cpu


def on_cards(gpus: float, each: float) -> int:
    """Return the number of workers for which so many cards have room: a share is never of two cards."""
    if each > 1:
        return int(gpus / each + 1e-9)
    whole = int(gpus + 1e-9)
    return whole * int(1 / each + 1e-9) + int((gpus - whole) / each + 1e-9)


def actor_options(placement: Placement) -> dict[str, Any]:
    """Return Ray's options of a worker's actor: on the node with most room, fractions of a card packed there."""
    return {
        "num_cpus": placement.cpus,
        "num_gpus": placement.gpus,
        "scheduling_strategy": "SPREAD",
        # Only raysim retries: it would not notice or count a retry of Ray on a new actor.
        "max_restarts": 0,
        "max_task_retries": 0,
    }


def _check(workers: int, cpus_each: float, gpus_each: float, total: dict[str, float]) -> None:
    asked = f"{workers} workers x {cpus_each:g} CPU" + (f" and {gpus_each:g} GPU" if gpus_each else "")
    has = f"{total.get('CPU', 0):g} CPU and {total.get('GPU', 0):g} GPU in the whole cluster"
    room = {"CPU": int(total.get("CPU", 0.0) / cpus_each + 1e-9)}
    if gpus_each:
        room["GPU"] = on_cards(total.get("GPU", 0.0), gpus_each)
    for name, fit in room.items():
        if workers > fit:
            raise ResourceError(
                f"The experiment asks for {asked}, but Ray has {has}. Lower engine.workers or engine."
                f"{name.lower()}s_per_worker (a fraction such as 0.5 is allowed, but never of two cards), or join a "
                f"larger cluster with --address."
            )


def room_for(placement: Placement) -> Room:
    """Return what Ray has for a worker of this placement."""
    each = {"CPU": placement.cpus, "GPU": placement.gpus}
    return Room(ray.available_resources(), {name: need for name, need in each.items() if need})
