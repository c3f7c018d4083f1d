"""Worse than one lost worker: all at once, a node that is out of reach and comes back, a store that is too small."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

import raysim
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.executor import rules
from raysim.engine.on_ray.executor.on_ray import OnRay
from raysim.engine.rounds import loop
from tests.support.executors import own_actors
from tests.support.nodes import TWO_EACH, Make, OnNode, alone, assert_same, never_return, params, plan_of, sprung, until

pytestmark = pytest.mark.usefixtures("loop_here")


@pytest.mark.usefixtures("ray_cluster")
def test_all_workers_killed_at_once_change_no_bit(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    trap = tmp_path / "trap"
    plan = plan_of(experiment, dataset, OnNode(ray.get_runtime_context().get_node_id(), trap, never_return))
    expected = alone(plan)
    trap.touch()
    on_ray = OnRay(plan, Placement(workers=2, cpus=1, gpus=0))
    on_ray.wait_for(2)

    def kill_all_when_sprung() -> None:
        until(sprung(trap).exists)
        for pool in own_actors("ClientPool"):
            os.kill(pool.pid, signal.SIGKILL)

    kill = threading.Thread(target=kill_all_when_sprung)
    kill.start()
    try:
        finished = list(loop.rounds(plan, on_ray, plan.initial_state()))
    finally:
        on_ray.close()
        kill.join()
    assert_same(params(finished), expected)
    assert finished[0].metrics["retries"]


def test_a_node_that_is_out_of_reach_is_done_without_though_it_comes_back(
    node: Any, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cluster shall declare it dead before somebody else has done its work.
    monkeypatch.setattr(rules, "is_slow", lambda running_s, expected_s: False)
    trap = tmp_path / "trap"
    plan = plan_of(experiment, dataset, OnNode(node.node_id, trap, never_return))
    expected = alone(plan)
    trap.touch()
    on_ray = OnRay(plan, TWO_EACH)
    on_ray.wait_for(4)
    (raylet,) = (info.process for info in node.all_processes["raylet"])
    cut_off = [psutil.Process(raylet.pid), *psutil.Process(raylet.pid).children(recursive=True)]

    def cut_when_sprung() -> None:
        until(sprung(trap).exists)
        for process in cut_off:
            process.suspend()

    cut = threading.Thread(target=cut_when_sprung)
    cut.start()
    try:
        rounds = loop.rounds(plan, on_ray, plan.initial_state())
        finished = [next(rounds)]
        # It is back, and believes itself a part of the cluster: nothing that it says may count.
        for process in cut_off:
            if process.is_running():
                process.resume()
        finished += rounds
    finally:
        on_ray.close()
        cut.join()
    assert_same(params(finished), expected)
    assert finished[0].metrics["retries"]


def spilled_bytes(session: Path) -> int:
    """What lies in the folders of objects for which Ray's stores have no room."""
    total = 0
    for file in session.rglob("ray_spilled_objects*/*"):
        with suppress(FileNotFoundError):
            total += file.stat().st_size
    return total


def test_what_the_object_store_has_no_room_for_goes_to_the_disk(
    ray_cluster: Any, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    # Ray's smallest store is 75 MB. Sixteen updates of 9 MB, which the median wants to see together, do not fit.
    small = ray_cluster.add_node(num_cpus=8, object_store_memory=80 * 1024 * 1024)
    sections: dict[str, Any] = {"model": {"name": "mlp", "hidden": [262144]}, "cohort": {"size": 16}, "rounds": 1}
    plan = plan_of(experiment, dataset, server={"aggregator": {"name": "median"}}, **sections)
    ended, on_disk = threading.Event(), [0]

    def watch() -> None:
        while not ended.wait(0.02):
            on_disk.append(spilled_bytes(Path(small.get_session_dir_path())))

    watching = threading.Thread(target=watch)
    watching.start()
    on_ray = OnRay(plan, Placement(workers=1, cpus=8, gpus=0))
    try:
        finished = list(loop.rounds(plan, on_ray, plan.initial_state()))
    finally:
        ended.set()
        watching.join()
        on_ray.close()
        ray_cluster.remove_node(small)
    # An update at least.
    assert max(on_disk) > 9e6
    assert_same(params(finished), alone(plan))
