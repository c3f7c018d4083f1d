"""What a run shows on Ray's dashboard."""

from __future__ import annotations

import time
from collections.abc import Callable
from urllib import request

import pytest

import raysim


def test_figures_have_names_that_prometheus_takes() -> None:
    from raysim.engine.on_ray.cluster.dashboard import figures

    row = {"round": 3, "loss": 0.5, "accuracy": None, "gsi": 2.0, "eval/test/accuracy": 0.9, "eval/test/p5": 0.1}
    assert figures(row) == {"raysim_finished_rounds": 4.0, "raysim_loss": 0.5, "raysim_eval_test_accuracy": 0.9}
    assert figures({"round": 0, "loss": float("nan")}) == {"raysim_finished_rounds": 1.0}


@pytest.mark.usefixtures("ray_cluster")
def test_rays_own_agent_exports_them(
    experiment: Callable[..., raysim.Experiment], dataset: raysim.FederatedDataset
) -> None:
    import ray

    # Those that other tests had are on the list, dead.
    (node,) = (node for node in ray.nodes() if node["Alive"])
    if node["MetricsExportPort"] <= 0:
        pytest.skip("this Ray exports no metrics: that takes pip install 'ray[default]'")
    rounds = raysim.rounds(experiment(rounds=1, engine={"workers": 1}), dataset=dataset)
    loss = next(rounds).metrics["loss"]
    address = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
    # Ray hands figures to its agent every few seconds.
    for _ in range(60):
        with request.urlopen(address, timeout=60) as answer:
            lines = [line for line in answer.read().decode().splitlines() if line.startswith("ray_raysim_loss{")]
        if lines:
            break
        time.sleep(0.5)
    rounds.close()  # type: ignore[attr-defined]
    assert 'run="test"' in lines[0]
    assert float(lines[0].split()[-1]) == pytest.approx(loss)
