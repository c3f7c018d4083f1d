"""Calls `ray.init` with raysim's settings.

A cluster that a script starts listens on loopback only, has no unnecessary processes, and does not handle SIGTERM."""

from __future__ import annotations

import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray import _raylet
from ray._private import ray_constants, services, worker
from ray._private.node import Node

from raysim.engine.on_ray.cluster import own_ray, placeholder_agents

LOCAL = "local"
"""The address of a cluster that this script starts."""

LOOPBACK = "127.0.0.1"

_RAYLET: Any = _raylet
"""Its stubs are not complete."""

NEEDLESS = ("start_monitor", "start_api_server")
"""Methods that start the autoscaler's monitor and the dashboard's server, Python processes of 80 to 90 MB each. A
cluster of one machine does not scale, raysim needs no dashboard, and `ray.init` would wait seconds for the server."""

STORE_SHARE = 4
"""The object store takes at most this part of a limited address space: each of Ray's processes maps all of the store
beside what it needs itself. Where it does not fit, workers die as they start, and `ray.init` waits for ever."""

_ONE_AT_A_TIME = threading.Lock()
"""The changes to Ray inside `init` affect all threads."""


def init(address: str, **settings: Any) -> None:
    """Join the cluster at the address; see `ray.init` for the settings and errors."""
    with _ONE_AT_A_TIME, _own_sigterm():
        ray.init(address=address, **settings)


def cluster_name() -> str:
    """Return which cluster was joined, and whose its session on this machine is, in words."""
    node: Any = worker._global_node
    whose = "another user"
    if node is not None:
        # A user without a name, and a folder that is on another machine.
        with suppress(OSError, KeyError):
            whose = Path(node.get_session_dir_path()).owner()
    return f"the Ray cluster at {ray.get_runtime_context().gcs_address}, of {whose}"


def start(
    begun: Callable[[own_ray.Processes], None],
    setup_worker: str | None = None,
    agent_port: int | None = None,
    **settings: Any,
) -> None:
    """Start a cluster of one machine; see `ray.init` for the settings and errors.

    All its processes listen on loopback only. It has no dashboard.

    Args:
        begun: called with the table of the processes before the first of them starts.
        setup_worker: the file that starts a worker, in place of Ray's.
        agent_port: see `agent_port`; None leaves Ray's agents.
        settings: see `ray.init`.
    """
    with (
        _ONE_AT_A_TIME,
        _own_sigterm(),
        _on_one_machine(),
        _without_needless(),
        _within_address_space(),
        _handed_over(begun, setup_worker),
        _with_placeholders(agent_port),
    ):
        ray.init(address=LOCAL, _node_ip_address=LOOPBACK, **settings)


@contextmanager
def agent_port() -> Iterator[int | None]:
    """Keep a port of a cluster of one machine free for Ray's agent of runtime environments, as long as it lives.

    Yields None where Ray's agents are not replaced: not on Linux, or where an older Ray does not take their ports.
    """
    if sys.platform != "linux" or not hasattr(_RAYLET, "persist_port"):
        yield None
        return
    with placeholder_agents.reserved(LOOPBACK) as reserving:
        yield reserving.getsockname()[1]


@contextmanager
def _on_one_machine() -> Iterator[None]:
    # Ray's processes listen on loopback where that is the node's address. On Linux Ray replaces such an address by one
    # that other machines can reach; where clusters are switched off, as on macOS, it does not. Its switch is an
    # environment variable that is read once, when Ray is imported, which the script may have done.
    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextmanager
def _without_needless() -> Iterator[None]:
    with ExitStack() as every:
        for name in NEEDLESS:
            every.enter_context(_replaced(Node, name, lambda _: lambda node, *args, **settings: None))
        yield


@contextmanager
def _within_address_space() -> Iterator[None]:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        yield
        return

    def capped(most: int) -> int:
        return min(most, max(limit // STORE_SHARE, ray_constants.OBJECT_STORE_MINIMUM_MEMORY_BYTES))

    with _replaced(ray_constants, "DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", capped):
        yield


@contextmanager
def _handed_over(begun: Callable[[own_ray.Processes], None], setup_worker: str | None) -> Iterator[None]:
    def handed_over(start: Any) -> Any:
        def start_head_processes(node: Any) -> None:
            begun(node.all_processes)
            if setup_worker is not None:
                node._ray_params.setup_worker_path = setup_worker
            start(node)

        return start_head_processes

    with _replaced(Node, "start_head_processes", handed_over):
        yield


@contextmanager
def _with_placeholders(agent_port: int | None) -> Iterator[None]:
    if agent_port is None:
        yield
        return
    # What Ray's own agent writes without a dashboard: it opens no ports.
    ports = dict.fromkeys(
        (_RAYLET.DASHBOARD_AGENT_LISTEN_PORT_NAME, _RAYLET.METRICS_AGENT_PORT_NAME, _RAYLET.METRICS_EXPORT_PORT_NAME),
        -1,
    ) | {_RAYLET.RUNTIME_ENV_AGENT_PORT_NAME: agent_port}

    def with_placeholders(start: Any) -> Any:
        def start_ray_process(command: list[str], process_type: str, *arguments: Any, **keywords: Any) -> Any:
            if process_type == ray_constants.PROCESS_TYPE_RAYLET:
                command = placeholder_agents.stand_in(command, agent_port, _RAYLET.persist_port, ports)
            return start(command, process_type, *arguments, **keywords)

        return start_ray_process

    with _replaced(services, "start_ray_process", with_placeholders):
        yield


@contextmanager
def quiet_after_death() -> Iterator[None]:
    """Inside the block, print nothing of Ray's processes once one of them has died: it would be their logs."""

    def quiet(write: Any) -> Any:
        def print_to_stdstream(*arguments: Any, **keywords: Any) -> None:
            if own_ray.died() is None:
                write(*arguments, **keywords)

        return print_to_stdstream

    with _replaced(worker, "print_to_stdstream", quiet):
        yield


@contextmanager
def _replaced(holder: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    # Ray has no public option for what is changed here. A Ray with other names goes on without it.
    before = vars(holder).get(name)
    if before is None:
        yield
        return
    setattr(holder, name, change(before))
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextmanager
def _own_sigterm() -> Iterator[None]:
    # ray.init installs a handler, and does not remove it.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        # None: it was set by something that is not Python.
        if before is not None:
            signal.signal(signal.SIGTERM, before)
