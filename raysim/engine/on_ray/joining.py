"""`ray.init` as raysim wants it: on loopback where the cluster is the script's own, and without a say in SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray._private import ray_constants

LOCAL = "local"
"""The address of a cluster of the script's own."""

LOOPBACK = "127.0.0.1"


def init(address: str, **settings: Any) -> None:
    """Join the cluster at the address, or start one; see `ray.init` for the settings and errors.

    A cluster that is started here has one machine: all of its processes listen on loopback only.
    """
    with _own_sigterm():
        if address == LOCAL:
            with _on_one_machine():
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
def _own_sigterm() -> Iterator[None]:
    # ray.init puts a handler of its own in place, and leaves it there.
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
