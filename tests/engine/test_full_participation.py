"""The probe: the similarity index of all clients, beside a round and without a trace in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import raysim

Make = Callable[..., raysim.Experiment]
EVERY_TWO: dict[str, Any] = {"diagnostics": {"probe": 2}}


def test_with_all_clients_in_the_cohort_it_is_the_rounds_own(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    for finished in raysim.rounds(experiment(cohort={"size": 20}, server=EVERY_TWO), dataset=dataset):
        probed = {name.removeprefix("probe/"): v for name, v in finished.metrics.items() if name.startswith("probe/")}
        if finished.index % 2:
            assert probed == {}
            assert "mean_norm_all_clients" not in finished.metrics
        else:
            of_cohort = finished.metrics["mean_update_norm"]
            assert finished.metrics["mean_norm_all_clients"] == pytest.approx(of_cohort, rel=1e-5)
            assert probed["clients"] == 20
            assert "gsi/fc1.weight" in probed
            # Chunks differ from the cohort's, because the members come in another order: equal up to rounding.
            assert all(value == pytest.approx(finished.metrics[name], rel=1e-5) for name, value in probed.items())


def test_it_is_the_index_of_every_client_by_definition(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    first = next(iter(raysim.rounds(experiment(server=EVERY_TWO), dataset=dataset)))
    # The same round with all clients, one update at a time: sqrt(sum p_i |d_i|^2 / |sum p_i d_i|^2).
    plain = experiment(server={}, rounds=1)
    start = {name: value.numpy() for name, value in _initial(plain, dataset).items()}
    sizes = dataset.train.sizes()
    total, spread, norms = 0.0, 0.0, []
    for position, n in enumerate(sizes.tolist()):
        alone = plain.changed([f'cohort={{ sampler = {{ name = "replay", cohorts = [["c{position}"]] }} }}'])
        after = next(iter(raysim.rounds(alone, dataset=dataset, params=start))).params
        delta = np.concatenate([(after[k].numpy() - start[k]).ravel() for k in start]).astype(np.float64)
        total, spread = total + n * delta, spread + n * float(delta @ delta)
        norms.append(float(np.linalg.norm(delta)))
    mean = total / sizes.sum()
    assert first.metrics["probe/gsi"] == pytest.approx((spread / sizes.sum() / (mean @ mean)) ** 0.5, rel=1e-5)
    assert first.metrics["mean_norm_all_clients"] == pytest.approx(np.mean(norms), rel=1e-5)


def _initial(experiment: raysim.Experiment, dataset: raysim.FederatedDataset) -> dict[str, torch.Tensor]:
    still = experiment.changed(["client.optimizer.lr=0.0"])
    return next(iter(raysim.rounds(still, dataset=dataset))).params


@pytest.mark.parametrize("workers", [0, 2])
def test_the_run_is_the_same_without_it(
    workers: int, experiment: Make, dataset: raysim.FederatedDataset, ray_cluster: None
) -> None:
    engine = {"workers": workers, "cpus_per_worker": 0.5}
    server = {"optimizer": {"name": "momentum", "lr": 0.5}, "clip": {"initial": 0.5}}
    plain = list(raysim.rounds(experiment(server=server, engine=engine), dataset=dataset))
    probed = list(raysim.rounds(experiment(server=server | EVERY_TWO, engine=engine), dataset=dataset))
    for left, right in zip(plain, probed, strict=True):
        assert all(torch.equal(left.params[name], right.params[name]) for name in left.params)
        assert left.metrics["clip_level"] == right.metrics["clip_level"]
    assert [r.metrics.get("probe/clients") for r in probed] == [20, None, 20, None]


def test_clients_remember_nothing_of_it(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    client = {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": 4, "correction": {"name": "scaffold"}}
    server = {"weighting": "uniform"}
    plain = list(raysim.rounds(experiment(client=client, server=server), dataset=dataset))
    probed = list(raysim.rounds(experiment(client=client, server=server | EVERY_TWO), dataset=dataset))
    for left, right in zip(plain, probed, strict=True):
        assert all(torch.equal(left.params[name], right.params[name]) for name in left.params)
    # What clients remember by round 2 counts in the measurement: it is not that of clients without a past.
    forgetful = experiment(client={**client, "correction": None}, server=server | EVERY_TWO)
    without = list(raysim.rounds(forgetful, dataset=dataset))
    assert probed[0].metrics["probe/gsi"] == pytest.approx(without[0].metrics["probe/gsi"], rel=1e-6)
    assert probed[2].metrics["probe/gsi"] != pytest.approx(without[2].metrics["probe/gsi"], rel=1e-3)


def test_it_is_refused_where_a_round_takes_two_passes(experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"server.diagnostics.probe = 2 measures one pass.*'mime'"):
        experiment(
            client={"optimizer": {"name": "sgd", "lr": 0.3}, "correction": {"name": "mime"}},
            server={"weighting": "uniform"} | EVERY_TWO,
        )
