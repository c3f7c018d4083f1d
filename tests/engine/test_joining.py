"""What is changed of Ray while it starts, and only then."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import ray
from ray._private import ray_constants
from ray._private.node import Node

from raysim.engine.on_ray.cluster import joining


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
        joining.init(joining.LOCAL)
    assert all(now is not then for now, then in zip(during, before, strict=True))
    assert choices() == before


def test_a_cluster_that_is_there_is_joined_with_nothing_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    before, during = choices(), []
    monkeypatch.setattr(ray, "init", lambda **settings: during.extend(choices()))
    joining.init("auto")
    assert during == before
