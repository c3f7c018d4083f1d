"""Centralised training is gradient descent on the pooled examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import raysim
from raysim.data.pooled import pool_clients
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]


def test_a_full_batch_is_one_step_down_the_mean_gradient(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(
        rounds=3,
        model={"name": "linear"},
        client={"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": "full"},
        engine={"workers": 0, "dtype": "float64"},
    )
    pairs = [dataset.train.client(k) for k in range(len(dataset.train))]
    x = torch.from_numpy(np.concatenate([pair[0] for pair in pairs]))
    y = torch.from_numpy(np.concatenate([pair[1] for pair in pairs]))
    weight, bias = torch.zeros(3, 5, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    start = {"fc.weight": weight, "fc.bias": bias}
    for step in raysim.rounds(raysim.centralized(exp), dataset=dataset, params=start):
        error = torch.softmax(x @ weight.T + bias, 1) - torch.nn.functional.one_hot(y, 3)
        weight, bias = weight - 0.3 * error.T @ x / len(x), bias - 0.3 * error.mean(0)
        torch.testing.assert_close(step.params["fc.weight"], weight)
        torch.testing.assert_close(step.params["fc.bias"], bias)
        assert step.cohort == ("pooled",)


def test_what_belongs_to_the_federation_goes_and_the_rest_stays(experiment: Make) -> None:
    exp = experiment(
        client={"optimizer": {"name": "sgd", "lr": 0.3}, "epochs": 2, "correction": {"name": "scaffold"}},
        server={"optimizer": {"name": "sgd", "lr": 0.5}, "clip": {"fixed": 1.0}},
        adversary={"name": "sign_flip", "clients": 0.1},
    )
    alone = raysim.centralized(exp)
    assert (alone.name, alone.cohort.size, alone.adversary, alone.client.correction) == (
        "test-centralized",
        1,
        None,
        None,
    )
    assert (alone.server.optimizer.name, alone.server.optimizer.lr, alone.server.clip) == ("sgd", 1.0, None)
    assert (alone.client.epochs, alone.client.optimizer.lr, alone.evaluation) == (2, 0.3, exp.evaluation)
    assert raysim.Experiment.model_validate(alone.said()) == alone


def test_updates_are_neither_changed_nor_compressed(experiment: Make) -> None:
    keys = {"compression": {"name": "top_k", "fraction": 0.1}, "transform": [{"name": "own"}]}
    client = raysim.centralized(experiment(client=keys)).client
    assert (client.compression, client.transform) == (None, ())


def test_evaluation_is_that_of_the_experiment(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    result = raysim.run(raysim.centralized(experiment()), dataset=dataset, path=tmp_path / "run")
    assert set(result.clients["client"].to_pylist()) == {"t0", "t1", "t2", "t3"}
    assert result.rounds["examples"].to_pylist() == [sum(3 + 2 * i for i in range(20))] * 4
    again = raysim.resume(tmp_path / "run", dataset=dataset, rounds=5)
    assert again.rounds["loss"][:4] == result.rounds["loss"]


@pytest.mark.usefixtures("ray_cluster")
def test_it_is_the_same_on_ray(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    exp = raysim.centralized(experiment())
    here = raysim.run(exp, dataset=dataset, path=tmp_path / "here")
    there = raysim.run(exp.changed(["engine.workers=1"]), dataset=dataset, path=tmp_path / "there")
    assert all(torch.equal(there.params[name], value) for name, value in here.params.items())


def test_the_pooled_client_has_everybodys_examples_in_order() -> None:
    clients = make_clients([2, 3])
    data = raysim.FederatedDataset.from_clients(clients)
    one = pool_clients(data)
    x, y = one.train.client(0)
    np.testing.assert_array_equal(x, np.concatenate([clients["c0"][0], clients["c1"][0]]))
    np.testing.assert_array_equal(y, np.concatenate([clients["c0"][1], clients["c1"][1]]))
    assert (len(one.train), one.train.sizes().tolist(), one.train.position_of("pooled")) == (1, [5], 0)
    assert one.fingerprint == pool_clients(data).fingerprint != data.fingerprint
