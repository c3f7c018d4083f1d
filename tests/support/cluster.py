"""A Ray cluster for tests, of one or more nodes on this machine, whose workers start warm."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster

from raysim.engine.on_ray.cluster import warm_workers


class WarmCluster(Cluster):
    """A cluster whose nodes start their workers warm, those that are added too."""

    def add_node(self, wait: bool = True, **settings: Any) -> Any:
        if warm_workers.SOCKET in os.environ:
            settings["setup_worker_path"] = warm_workers.__file__
        return super().add_node(wait, **settings)


@contextmanager
def cluster(num_cpus: int) -> Iterator[Cluster]:
    """A cluster that this process is connected to, as raysim finds it in a script that called `ray.init`."""
    # Neither a dashboard nor an autoscaler is looked at.
    head = {"num_cpus": num_cpus, "include_dashboard": False, "no_monitor": True}
    with warm_workers.serving():
        started = WarmCluster(initialize_head=True, head_node_args=head)
        ray.init(address=started.address, log_to_driver=False)
        try:
            yield started
        finally:
            ray.shutdown()
            started.shutdown()  # type: ignore[no-untyped-call]
