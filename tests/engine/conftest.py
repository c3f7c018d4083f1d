"""A second node, and a loop in the tests' own process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch

from raysim.engine import numerics
from tests.support.nodes import until


@pytest.fixture
def loop_here() -> Iterator[None]:
    """The loop runs in this process: with one thread, as it would in a driver's."""
    with numerics.fixed(1, torch.device("cpu"), "float32"):
        yield


@pytest.fixture
def node(ray_cluster: Any) -> Iterator[Any]:
    """A second node with as many CPUs as the first; gone afterwards, if it still was there."""
    added = ray_cluster.add_node(num_cpus=4)
    yield added
    if added in ray_cluster.list_all_nodes():
        ray_cluster.remove_node(added)
    until(lambda: ray.cluster_resources().get("CPU") == 4)
