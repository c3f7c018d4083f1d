"""What is changed of Ray while it starts, and only then."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray._private import ray_constants, services
from ray._private.node import Node

from raysim.engine.on_ray.cluster import answering, joining
from raysim.engine.on_ray.cluster.cluster import connected
from raysim.errors import ResourceError


def choices() -> list[Any]:
    """What `init` changes for as long as it takes."""
    methods = [vars(Node)[name] for name in joining.NEEDLESS]
    return [*methods, services.start_ray_process, ray_constants.ENABLE_RAY_CLUSTER, signal.getsignal(signal.SIGTERM)]


def test_a_start_that_fails_leaves_ray_and_the_script_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    before, during = choices(), []

    def fail(**settings: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        during.extend(choices())
        raise ConnectionError("no such cluster")

    monkeypatch.setattr(ray, "init", fail)
    with pytest.raises(ConnectionError, match="no such cluster"):
        joining.start(lambda processes: None, agent_port=4321)
    assert all(now is not then for now, then in zip(during, before, strict=True))
    assert choices() == before


@pytest.mark.parametrize(
    ("gigabytes", "most"), [(64, 16 << 30), (0.25, 75 << 20), (None, 200 * 10**9)], ids=["a quarter", "least", "none"]
)
def test_the_object_store_fits_into_a_limited_address_space(
    gigabytes: float | None, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = resource.RLIM_INFINITY if gigabytes is None else int(gigabytes * (1 << 30))
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, resource.RLIM_INFINITY))
    monkeypatch.setattr(ray_constants, "DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES", 200 * 10**9)
    during = []
    monkeypatch.setattr(
        ray, "init", lambda **settings: during.append(ray_constants.DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES)
    )
    joining.start(lambda processes: None)
    assert during == [most]
    assert ray_constants.DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES == 200 * 10**9


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
    monkeypatch.setattr(answering, "checked", lambda address: address)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with connected(address):
        pass
    assert seen == [niceness]


@pytest.fixture
def join(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Join what says this and no more; what is refused is refused before Ray tries it, and no Ray is ended."""

    def init(**settings: Any) -> None:
        raise AssertionError("Ray would try for minutes")

    def shutdown() -> None:
        raise AssertionError("there is nothing to end")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", shutdown)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def join(says: bytes) -> None:
        # Ray replaces the address of loopback by another one of this machine.
        with socket.create_server(("0.0.0.0", 0)) as server:

            def answer() -> None:
                accepted.append(server.accept()[0])
                accepted[0].sendall(says)

            accepted: list[socket.socket] = []
            listening = threading.Thread(target=answer)
            listening.start()
            try:
                with connected(f"127.0.0.1:{server.getsockname()[1]}"):
                    pass
            finally:
                listening.join()
                accepted[0].close()

    return join


def no_client(address: str) -> None:
    raise AssertionError("what listens there speaks no gRPC")


def test_an_address_where_something_else_listens_is_refused(
    join: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answering, "GcsClient", no_client)
    monkeypatch.setattr(answering, "ANSWER_S", 60.0)
    with pytest.raises(ResourceError, match="is not Ray"):
        join(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def test_an_address_that_is_silent_is_refused(join: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "GcsClient", no_client)
    # For silence any time is long enough.
    monkeypatch.setattr(answering, "ANSWER_S", 0.05)
    with pytest.raises(ResourceError, match=r"no answer within 0\.05 s"):
        join(b"")


def test_a_control_service_that_is_silent_is_refused(
    join: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    monkeypatch.setattr(answering, "GcsClient", lambda address: over.wait())
    monkeypatch.setattr(answering, "ANSWER_S", 0.5)
    try:
        with pytest.raises(ResourceError, match=r"no answer within 0\.5 s"):
            join(answering.SETTINGS)
    finally:
        over.set()


def test_a_cluster_with_another_token_is_refused(
    join: Callable[[bytes], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    class RefusedError(Exception):
        pass

    def refuse(address: str) -> None:
        raise RefusedError

    monkeypatch.setattr(answering, "REFUSED", RefusedError)
    monkeypatch.setattr(answering, "GcsClient", refuse)
    monkeypatch.setattr(answering, "ANSWER_S", 60.0)
    with pytest.raises(ResourceError, match=r"does not take this user's token.*RAY_AUTH_TOKEN"):
        join(answering.SETTINGS)


def test_what_was_checked_is_what_is_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    joined: list[Any] = []
    monkeypatch.setattr(answering, "checked", lambda address: f"what {address} means")
    monkeypatch.setattr(ray, "init", lambda **settings: joined.append(settings["address"]))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with connected("auto"):
        assert joined == ["what auto means"]
