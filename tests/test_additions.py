"""What an experiment adds to FedAvg: nothing of it exists without the addition (raysim/algorithm/federated.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.algorithm.algorithm import Algorithm
from raysim.engine.plan.resolve import resolve

Make = Callable[..., raysim.Experiment]


def algorithm(experiment: raysim.Experiment, dataset: raysim.FederatedDataset) -> Algorithm:
    return resolve(experiment, dataset=dataset).algorithm()


def modules(made: Algorithm) -> dict[str, str]:
    """Which file defines each function of a round, the outermost if there are several around each other."""
    functions: dict[str, Any] = {"init": made.init, "step": made.step, "received": made.received}
    for phase in made.phases:
        functions |= {f"broadcast of {phase.of}": phase.broadcast, f"local {phase.of}": phase.local}
    return {name: function.__module__.rpartition(".")[2] for name, function in functions.items()}


def test_the_state_of_a_client_that_is_rejected_enters_no_sum() -> None:
    """The server's control variate stays a number, and with it the model of the next round."""
    x = np.random.default_rng(0).normal(size=(3, 6, 4)).astype(np.float32)
    x[1] = np.nan
    clients = {str(i): (x[i], np.arange(6) % 2) for i in range(3)}
    keys: dict[str, Any] = {"rounds": 3, "cohort": {"size": 3}, "client": {"correction": {"name": "scaffold"}}}
    exp = raysim.Experiment.model_validate(
        {"name": "rejected", "model": {"name": "linear"}, "engine": {"workers": 0}, **keys}
    )
    data = raysim.FederatedDataset.from_clients(clients)
    for done in raysim.rounds(exp, dataset=data):
        assert done.metrics["rejected"] == 1
        assert all(bool(tensor.isfinite().all()) for tensor in done.params.values())


def test_fedavg_is_one_file(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    assert modules(algorithm(experiment(), dataset)) == {
        "init": "fedavg",
        "step": "fedavg",
        "received": "fedavg",
        "broadcast of training": "fedavg",
        "local training": "fedavg",
    }


@pytest.mark.parametrize(
    ("client", "server", "expected"),
    [
        (
            {"correction": {"name": "scaffold"}},
            {},
            {"init": "client_state", "step": "corrected", "received": "corrected", "broadcast of training": "phase"},
        ),
        (
            {"correction": {"name": "mime"}},
            {},
            {
                "init": "corrected",
                "step": "corrected",
                "received": "corrected",
                "broadcast of gradients": "fedavg",
                "local gradients": "gradient_phase",
                "broadcast of training": "phase",
            },
        ),
        ({"compression": {"name": "sign"}}, {}, {"step": "compressing"}),
        (
            {},
            {"compression": {"name": "quantise", "levels": 7}},
            {
                "init": "compressing",
                "step": "compressing",
                "received": "compressing",
                "broadcast of training": "phase",
            },
        ),
        (
            {},
            {"fairness": {"name": "tilt", "t": 1.0}},
            {
                "init": "fair",
                "step": "fair",
                "broadcast of losses": "phase",
                "local losses": "start_losses",
                "broadcast of training": "phase",
            },
        ),
    ],
    ids=["scaffold", "mime", "compressed updates", "compressed model", "fair"],
)
def test_an_addition_is_around_what_it_changes_and_nothing_else(
    client: dict[str, Any],
    server: dict[str, Any],
    expected: dict[str, str],
    experiment: Make,
    dataset: raysim.FederatedDataset,
) -> None:
    base = {"optimizer": {"name": "sgd", "lr": 0.1}}
    made = modules(algorithm(experiment(client=base | client, server=server), dataset))
    plain = modules(algorithm(experiment(client=base), dataset))
    assert made == plain | expected


def test_the_phase_of_losses_comes_before_that_of_gradients(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(
        client={"optimizer": {"name": "sgd", "lr": 0.1}, "correction": {"name": "mime"}},
        cohort={"size": 3, "sampler": {"name": "power_of_choice", "candidates": 6}},
    )
    assert [phase.of for phase in algorithm(exp, dataset).phases] == ["losses", "gradients", "training"]
