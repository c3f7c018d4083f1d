"""What is changed of Ray while it starts, and only then."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any

import pytest
import ray
from ray._private import ray_constants
from ray._private.node import Node

from raysim.engine.on_ray.cluster import cluster, joining
from raysim.engine.on_ray.cluster.cluster import connected
from raysim.errors import ResourceError


def choices() -> list[Any]:
    """What `init` changes for as long as it takes."""
    methods = [vars(Node)[name] for name in joining.NEEDLESS]
    return [*methods, ray_constants.ENABLE_RAY_CLUSTER, signal.getsignal(signal.SIGTERM)]


def test_a_start_that_fails_leaves_ray_and_the_script_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    before, during = choices(), []

    def fail(**settings: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        during.extend(choices())
        raise ConnectionError("no such cluster")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ConnectionError, match="no such cluster"):
        joining.start(lambda processes: None)
    assert all(now is not then for now, then in zip(during, before, strict=True))
    assert choices() == before


def test_a_cluster_that_is_there_is_joined_with_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    before, during = choices(), []
    monkeypatch.setattr(ray, "init", lambda **settings: during.extend(choices()))
    joining.init("auto")
    assert during == before


@pytest.mark.parametrize(("address", "niceness"), [(None, "0"), ("auto", None)])
def test_workers_of_a_ray_of_ones_own_are_as_nice_as_the_script(
    address: str | None, niceness: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    # Set first, so that the variable is put back behind the test.
    monkeypatch.setenv("RAY_worker_niceness", "")
    monkeypatch.delenv("RAY_worker_niceness")
    monkeypatch.setattr(ray, "init", lambda **settings: seen.append(os.environ.get("RAY_worker_niceness")))  # noqa: SIM112
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with connected(address):
        pass
    assert seen == [niceness]


@pytest.mark.parametrize(
    ("answers", "said"), [(b"", "does not answer"), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is not Ray")]
)
def test_an_address_where_something_else_listens_is_refused_before_ray_tries_it(
    answers: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def init(**settings: Any) -> None:
        raise AssertionError("Ray would try for minutes")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    # What answers does so at once; for silence any time is long enough.
    monkeypatch.setattr(cluster, "REACH_S", 60.0 if answers else 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            accepted.append(server.accept()[0])
            accepted[0].sendall(answers)

        accepted: list[socket.socket] = []
        listening = threading.Thread(target=answer)
        listening.start()
        with pytest.raises(ResourceError, match=said), connected(f"127.0.0.1:{server.getsockname()[1]}"):
            pass
        listening.join()
        accepted[0].close()
