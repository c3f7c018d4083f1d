"""A Ray cluster for tests, of one or more nodes on this machine, whose workers start warm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import ray
from ray.cluster_utils import Cluster

from tests.support import warm_workers

COLD = "RAYSIM_TEST_COLD_WORKERS"
"""Where this environment variable is set, workers start as Ray starts them."""


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
    with _warm():
        started = WarmCluster(initialize_head=True, head_node_args=head)
        ray.init(address=started.address, log_to_driver=False)
        try:
            yield started
        finally:
            ray.shutdown()
            started.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def _warm() -> Iterator[None]:
    # Elsewhere a process that has loaded as much had better not fork.
    if sys.platform != "linux" or COLD in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="raysim-workers-") as folder:
        path = f"{folder}/socket"
        command = [sys.executable, warm_workers.__file__, "--serve", path]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdin is not None
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            os.environ[warm_workers.SOCKET] = path
            try:
                yield
            finally:
                del os.environ[warm_workers.SOCKET]
                server.stdin.close()
                server.wait(timeout=240)
