"""A correction or a client optimizer of a script: same bits, and defined with the same choices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import raysim
from raysim.client.corrections import feddyn, prox, scaffold

Make = Callable[..., raysim.Experiment]

CLIENT = {"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 4, "local_steps": 3}


def assert_same(left: Any, right: Any) -> None:
    for one, other in zip(left, right, strict=True):
        assert all(torch.equal(value, other.params[name]) for name, value in one.params.items())


@pytest.mark.parametrize(
    ("built_in", "make"),
    [
        ({"name": "prox", "mu": 0.3}, lambda section: prox.make(prox.Prox(mu=section.constants.get("mu", 0.3)))),
        ({"name": "scaffold"}, lambda section: scaffold.make(scaffold.Scaffold())),
        ({"name": "feddyn", "mu": 0.1}, lambda section: feddyn.make(feddyn.FedDyn(mu=0.1))),
    ],
    ids=["prox", "scaffold", "feddyn"],
)
def test_a_correction_through_the_public_door_has_the_built_in_ones_bits(
    built_in: dict[str, Any],
    make: Callable[[raysim.OwnPart], raysim.Correction],
    dataset: raysim.FederatedDataset,
    experiment: Make,
) -> None:
    expected = list(raysim.rounds(experiment(client={**CLIENT, "correction": built_in}), dataset=dataset))
    own = experiment(client=CLIENT)
    assert_same(expected, list(raysim.rounds(own, dataset=dataset, correction=make)))


def test_a_script_s_correction_weighs_as_it_is_defined_and_is_recorded_as_own(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    def make(section: raysim.OwnPart) -> raysim.Correction:
        return scaffold.make(scaffold.Scaffold())

    with pytest.raises(raysim.ExperimentError, match=r"name = 'own' is defined with server.weighting = 'uniform'"):
        raysim.rounds(experiment(server={"weighting": "examples"}), dataset=dataset, correction=make)
    raysim.run(experiment(), dataset=dataset, correction=make, path=tmp_path / "run")
    with pytest.raises(raysim.ExperimentError, match=r"passes as correction=, but none was passed"):
        raysim.resume(tmp_path / "run", dataset=dataset)


def test_a_client_optimizer_steps_as_it_says(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def make(section: Any) -> raysim.ClientOptimizer:
        def step(params: Tensor, gradient: Tensor, state: Any, lr: Any) -> None:
            params.sub_(state["v"].mul_(section.constants["rho"]).add_(gradient) * lr)

        return raysim.ClientOptimizer(lambda params: {"v": torch.zeros_like(params)}, step)

    momentum = {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5}}
    own = {"optimizer": {"name": "own", "lr": 0.1, "constants": {"rho": 0.5}}}
    left = raysim.rounds(experiment(client=momentum), dataset=dataset)
    right = raysim.rounds(experiment(client=own), dataset=dataset, client_optimizer=make)
    for one, other in zip(left, right, strict=True):
        for name, value in one.params.items():
            torch.testing.assert_close(value, other.params[name])
