"""The mark `ray` is on every test that starts Ray, or uses one that runs."""

from __future__ import annotations

import subprocess
import sys

import pytest
import ray

from tests.support import ray_mark
from tests.support.ray_mark import NO_FOLDER


def test_without_it_no_ray_can_be_started() -> None:
    command = [sys.executable, "-c", "import ray; ray.init(address='local', include_dashboard=False)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 1
    assert NO_FOLDER in done.stderr


def test_without_it_nothing_can_be_asked_of_a_ray_that_runs() -> None:
    class Actor:
        pass

    def task() -> None:
        pass

    for ask in (ray.remote(Actor).remote, ray.remote(task).remote):
        with pytest.raises(pytest.fail.Exception, match=r"needs the mark: @pytest\.mark\.ray"):
            ask()


def test_without_it_a_ray_that_runs_is_not_ended(request: pytest.FixtureRequest) -> None:
    ended: list[None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ray, "shutdown", lambda: ended.append(None))
        patch.setattr(ray, "is_initialized", lambda: True)
        ray_mark.enforce(request.node, patch)
        with pytest.raises(pytest.fail.Exception, match=r"needs the mark: @pytest\.mark\.ray"):
            ray.shutdown()
    assert ended == []


@pytest.fixture
def ray_cluster() -> None:
    """In the place of the cluster, which this module does not need."""


@pytest.fixture
def node(ray_cluster: None) -> None:
    """Asks for the cluster, as a second node does."""


@pytest.mark.usefixtures("node")
def test_who_asks_for_the_cluster_has_it(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("ray") is not None


def test_who_does_not_has_it_not(request: pytest.FixtureRequest) -> None:
    assert request.node.get_closest_marker("ray") is None
