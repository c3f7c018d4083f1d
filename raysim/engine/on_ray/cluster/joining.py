"""Calls `ray.init` with raysim's settings.

A cluster that a script starts listens on loopback only, has no unnecessary processes, and does not handle SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants
from ray._private.node import Node

LOCAL = "local"
"""The address of a cluster that this script starts."""

LOOPBACK = "127.0.0.1"

NEEDLESS = ("start_monitor", "start_api_server")
"""Methods that start the autoscaler's monitor and the dashboard's server, Python processes of 80 to 90 MB each. A
cluster of one machine does not scale, raysim needs no dashboard, and `ray.init` would wait seconds for the server."""


_ONE_AT_A_TIME = threading.Lock()
"""The changes to Ray inside `init` affect all threads."""


def init(address: str, **settings: Any) -> None:
    """Join the cluster at the address, or start one; see `ray.init` for the settings and errors.

    A cluster started here has one machine. All its processes listen on loopback only. It has no dashboard.
    """
    with _ONE_AT_A_TIME, _own_sigterm():
        if address == LOCAL:
            with _on_one_machine(), _without_needless():
                ray.init(address=address, _node_ip_address=LOOPBACK, **settings)
        else:
            ray.init(address=address, **settings)


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
    # Ray has no public option for either. A Ray with other method names starts them, and nothing else changes.
    before = {name: vars(Node)[name] for name in NEEDLESS if name in vars(Node)}
    for name in before:
        setattr(Node, name, lambda node, *args, **settings: None)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)


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
