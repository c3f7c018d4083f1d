"""Several nodes: what travels, and what becomes of a run when workers and nodes come, go, and hang."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import ray

import raysim
from raysim.engine.on_ray.cluster import cluster
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.executor import assigning, late_workers, replies
from raysim.engine.on_ray.executor.on_ray import OnRay
from raysim.engine.rounds import kept_updates, loop
from tests.support.nodes import (
    TWO_EACH,
    Make,
    OnNode,
    Until,
    alone,
    assert_same,
    never_return,
    params,
    plan_of,
    sprung,
    until,
)

pytestmark = pytest.mark.usefixtures("loop_here")


@pytest.mark.usefixtures("node")
def test_sums_are_added_up_on_their_node_before_they_travel(
    dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Who takes chunks from others' regions, or does what somebody is late with, breaks up subtrees, as the moment has
    # it: here nobody does.
    monkeypatch.setattr(assigning, "least_to_take", lambda _: math.inf)
    monkeypatch.setattr(late_workers, "SLOW_S", math.inf)
    monkeypatch.setattr(replies, "HOLD_S", math.inf)
    plan = plan_of(experiment, dataset, cohort={"size": 16})
    on_ray = OnRay(plan, TWO_EACH)
    on_ray.wait_for(4)
    try:
        assert ["node 1" in line for line in sorted(on_ray.started)].count(True) == 2
        finished = list(loop.rounds(plan, on_ray, plan.initial_state()))
    finally:
        on_ray.close()
    assert_same(params(finished), alone(plan))
    model_bytes = 4 * plan.model.params.size
    costs = finished[0].metrics  # nothing is evaluated in it
    # One copy of the model for both workers there, and one record from both; those beside the driver send one each.
    assert model_bytes <= (costs["ray_bytes_down/1"] or 0) < 1.1 * model_bytes
    assert (costs["ray_bytes_up/1"] or 0) == (costs["ray_bytes_up/0"] or 0) / 2 > 2 * model_bytes
    assert costs["ray_bytes_up"] == 3 * (costs["ray_bytes_up/1"] or 0)


def test_a_node_killed_in_mid_round_changes_no_bit(
    node: Any, ray_cluster: Any, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    trap = tmp_path / "trap"
    plan = plan_of(experiment, dataset, OnNode(node.node_id, trap, never_return))
    expected = alone(plan)
    trap.touch()
    on_ray = OnRay(plan, TWO_EACH)
    on_ray.wait_for(4)

    def kill_when_sprung() -> None:
        until(sprung(trap).exists)
        ray_cluster.remove_node(node, allow_graceful=False)

    kill = threading.Thread(target=kill_when_sprung)
    kill.start()
    try:
        finished = list(loop.rounds(plan, on_ray, plan.initial_state()))
    finally:
        on_ray.close()
        kill.join()
    assert_same(params(finished), expected)
    assert finished[0].metrics["retries"]
    assert [f.metrics["workers"] for f in finished[1:]] == [2, 2]


def test_updates_that_went_with_a_node_are_made_again(
    node: Any,
    ray_cluster: Any,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = plan_of(experiment, dataset, server={"aggregator": {"name": "median"}})
    expected = alone(plan)
    aggregate = kept_updates.aggregate
    calls: list[Any] = []

    def after_the_node_is_lost(*arguments: Any) -> Any:
        if not calls:
            ray_cluster.remove_node(node, allow_graceful=False)
        calls.append(arguments)
        return aggregate(*arguments)

    monkeypatch.setattr(kept_updates, "aggregate", after_the_node_is_lost)
    on_ray = OnRay(plan, TWO_EACH)
    on_ray.wait_for(4)
    try:
        finished = list(loop.rounds(plan, on_ray, plan.initial_state()))
    finally:
        on_ray.close()
    assert_same(params(finished), expected)
    assert len(calls) == 4
    assert (finished[0].metrics["retries"] or 0) >= 1


def test_nodes_that_join_are_used(
    ray_cluster: Any, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "GROW_S", 0.0)
    plan = plan_of(experiment, dataset, rounds=200)
    on_ray = OnRay(plan, Placement(workers=2, cpus=2, gpus=0, grows=True))
    on_ray.wait_for(2)
    added, seen = None, []
    try:
        for finished in loop.rounds(plan, on_ray, plan.initial_state()):
            seen.append(finished.metrics["workers"])
            if added is None:
                added = ray_cluster.add_node(num_cpus=2)
            if seen[-1] == 3:
                break
            time.sleep(0.1)
    finally:
        on_ray.close()
        if added is not None:
            ray_cluster.remove_node(added)
    assert (seen[0], seen[-1]) == (2, 3)


@pytest.mark.usefixtures("ray_cluster")
def test_what_a_late_worker_has_is_done_by_another(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_workers, "SLOW_S", 1.0)
    trap, release = tmp_path / "trap", tmp_path / "release"
    here = ray.get_runtime_context().get_node_id()
    plan = plan_of(experiment, dataset, OnNode(here, trap, Until(release)), rounds=4)
    expected = alone(plan)
    on_ray = OnRay(plan, Placement(workers=2, cpus=1, gpus=0))
    on_ray.wait_for(2)
    got = []
    try:
        for finished in loop.rounds(plan, on_ray, plan.initial_state(), overlap=False):
            got.append(finished)
            if finished.index == 0:
                trap.touch()  # what units cost is known: from now on somebody may be late
            if finished.index == 1:
                assert sprung(trap).exists()
                release.touch()  # the late worker comes back in the middle of the next round
    finally:
        on_ray.close()
    assert_same(params(got), expected)
    assert [f.metrics["retries"] for f in got] == [0, 0, 0, 0]


@pytest.mark.usefixtures("ray_cluster")
def test_a_worker_that_hangs_is_replaced(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(late_workers, "HUNG_S", 5.0)
    trap = tmp_path / "trap"
    here = ray.get_runtime_context().get_node_id()
    plan = plan_of(experiment, dataset, OnNode(here, trap, never_return))
    expected = alone(plan)
    on_ray = OnRay(plan, Placement(workers=1, cpus=1, gpus=0))
    got = []
    try:
        for finished in loop.rounds(plan, on_ray, plan.initial_state(), overlap=False):
            got.append(finished)
            if finished.index == 0:
                trap.touch()
    finally:
        on_ray.close()
    assert_same(params(got), expected)
    assert [f.metrics["retries"] for f in got] == [0, 1, 0]


@pytest.mark.parametrize(
    ("running_s", "expected_s", "slow", "hung"),
    [
        (4.9, 0.1, False, False),  # anything may take a few seconds
        (5.1, 0.1, True, False),
        (29.0, 10.0, False, False),
        (31.0, 10.0, True, False),
        (61.0, 0.1, True, True),
        (199.0, 10.0, True, False),
        (201.0, 10.0, True, True),
        (1e9, None, False, False),  # a cost that was never measured says nothing
    ],
)
def test_late_is_measured_against_what_was_expected(
    running_s: float, expected_s: float | None, slow: bool, hung: bool
) -> None:
    assert late_workers.is_slow(running_s, expected_s) is slow
    assert late_workers.is_hung(running_s, expected_s) is hung
