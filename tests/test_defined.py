"""What is not defined together is refused, with what was given and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import Correction
from raysim.client.corrections.mime import MimeLite
from raysim.client.section import ClientSection
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
MU = {"mu": 0.1}
BETA = {"beta": 0.5}
ALL: dict[str, dict[str, Any]] = {
    "prox": MU,
    "scaffold": {},
    "scaffold_m": {},
    "feddyn": MU,
    "adabest": BETA,
    "mime": {},
    "mimelite": {},
    "feddane": MU,
}
SGD_SERVERS = ("scaffold", "scaffold_m", "feddyn", "adabest", "mime", "mimelite")


def client(name: str, **keys: Any) -> dict[str, Any]:
    return {"correction": {"name": name, **ALL[name]}, **keys}


@pytest.mark.parametrize("name", ALL)
def test_every_correction_is_one_config_away(name: str, experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients(train=make_clients([6] * 9), test=make_clients([90], seed=1))
    got = list(raysim.rounds(experiment(rounds=20, client=client(name, local_steps=2)), dataset=data))
    # Three classes: a third is chance.
    assert (got[-1].metrics["eval/test/accuracy"] or 0.0) > 0.5
    assert ("eval_average/test/accuracy" in got[-1].metrics) == (name in ("feddyn", "adabest"))


@pytest.mark.parametrize("name", SGD_SERVERS)
def test_what_says_itself_what_the_server_remembers_needs_server_sgd(name: str, experiment: Make) -> None:
    with pytest.raises(
        raysim.ExperimentError, match=rf"'{name}' is defined with server.optimizer.name = 'sgd'.*'adam'"
    ):
        experiment(client=client(name), server={"optimizer": {"name": "adam"}})


@pytest.mark.parametrize("name", ["feddyn", "adabest"])
@pytest.mark.parametrize(
    "server",
    [
        {"optimizer": {"lr": 0.5}},
        {"lr_schedule": {"name": "exponential", "decay": 0.9}},
        {"lr_scaling": {"rule": "none", "warmup": 3}},
    ],
    ids=["lr", "schedule", "scaling"],
)
def test_a_broadcast_less_h_needs_server_lr_1(name: str, server: dict[str, Any], experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"server.optimizer.lr must be 1, without lr_scaling"):
        experiment(client=client(name), server=server)


@pytest.mark.parametrize(
    ("given", "server", "message"),
    [
        (client("scaffold"), {"weighting": "examples"}, "server.weighting = 'uniform', but got 'examples'"),
        (client("feddyn"), {"weighting": "ida"}, "server.weighting = 'uniform', but got 'ida'"),
        (client("mime"), {"weighting": "ida"}, "server.weighting 'uniform' or 'examples', but got 'ida'"),
        (client("feddyn"), {"aggregator": {"name": "median"}}, "aggregator.name 'mean', but got 'median'"),
        (client("scaffold"), {"aggregator": {"name": "krum", "f": 1}}, "'mean' or 'fednova', but got 'krum'"),
        (client("mime", optimizer={"name": "adam"}), {}, "must be 'sgd' without momentum, but got 'adam'"),
        (client("mimelite", optimizer={"momentum": 0.9}), {}, "without momentum, but got 'sgd' with momentum = 0.9"),
        (client("scaffold_m", max_grad_norm=1.0), {}, "'scaffold' is defined with all of them"),
        (client("scaffold", optimizer={"lr": 0.0}), {}, "client.optimizer.lr > 0 must hold, but got 0"),
        (
            {"optimizer": {"name": "adam"}},
            {"aggregator": {"name": "fednova"}},
            "which is defined only for client.optimizer",
        ),
        (
            client("prox", optimizer={"momentum": 0.9}),
            {"aggregator": {"name": "fednova"}},
            "no a_i for momentum and a pull towards the model together",
        ),
    ],
)
def test_what_is_not_defined_together_is_refused(
    given: dict[str, Any], server: dict[str, Any], message: str, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(client=given, server=server)


@pytest.mark.parametrize(
    ("correction", "message"),
    [
        ({"name": "prox", "mu": -0.1}, r"client.correction.mu must be .* 0.*-0.1"),
        ({"name": "feddyn", "mu": -1}, r"client.correction.mu must be"),
        ({"name": "adabest", "beta": 1.2}, r"client.correction.beta must be .*1.2"),
        ({"name": "adabest", "beta": -0.2}, r"client.correction.beta must be"),
        ({"name": "adabest"}, r"client.correction.beta must be given"),
        ({"name": "mime", "base": "sgd", "beta1": 0.9}, r"base = 'sgd' has no constants, but got beta1 = 0.9"),
        ({"name": "mime", "base": "momentum", "eps": 1}, r"base = 'momentum' has beta1, but got eps"),
        ({"name": "scafold"}, r"client.correction.name must be one of .* 'scafold'.*scaffold"),
        ({"name": "scaffold", "mu": 1}, r"unknown key 'client.correction.mu'"),
    ],
)
def test_parameters_out_of_range_are_refused(correction: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(client={"correction": correction})


@pytest.mark.parametrize("name", ALL)
def test_states_change_once_a_round(name: str, experiment: Make) -> None:
    sampled = {"size": 3, "sampler": {"name": "md"}}
    if name not in ("scaffold", "scaffold_m", "feddyn", "adabest"):
        experiment(client=client(name), cohort=sampled)
        return
    with pytest.raises(raysim.ExperimentError, match="'md' may draw a client several times"):
        experiment(client=client(name), cohort=sampled)


def test_scaffold_m_needs_equal_local_steps(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(
        raysim.ExperimentError, match=r"client 'c0' takes 1 and client 'c19' takes 11: set client.local"
    ):
        raysim.rounds(experiment(client=client("scaffold_m", batch_size=4)), dataset=dataset)
    later = client("scaffold_m", batch_size=4, local_steps=2, schedule=[{"round": 3, "epochs": 1}])
    with pytest.raises(raysim.ExperimentError, match="in round 3"):
        raysim.rounds(experiment(client=later), dataset=dataset)


@pytest.mark.parametrize("name", SGD_SERVERS)
def test_where_uniform_weights_are_the_definition_they_are_the_default(name: str, experiment: Make) -> None:
    assert experiment(client=client(name)).server.weighting == "uniform"


@pytest.mark.parametrize("name", ["prox", "feddane"])
def test_elsewhere_clients_are_weighed_by_their_examples(name: str, experiment: Make) -> None:
    assert experiment(client=client(name)).server.weighting == "examples"


def test_fednova_divides_by_what_a_pull_leaves_of_the_gradients(experiment: Make) -> None:
    """A gradient of 1 everywhere: y_tau - x = -lr (1 - (1 - lr mu)^tau) / (lr mu), so delta_i / a_i = -lr for all."""

    def falling(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return outputs.flatten()

    data = raysim.FederatedDataset.from_clients(
        train={"a": (np.ones((2, 1)), np.zeros(2)), "b": (np.ones((6, 1)), np.zeros(6))}
    )
    lr, mu = 0.1, 0.5
    exp = experiment(
        rounds=1,
        model=None,
        client={"optimizer": {"lr": lr}, "batch_size": 2, "correction": {"name": "prox", "mu": mu}},
        cohort={"size": 2},
        server={"aggregator": {"name": "fednova"}, "weighting": "uniform"},
        engine={"workers": 0, "dtype": "float64"},
    )
    (done,) = raysim.rounds(
        exp, dataset=data, model=lambda: nn.Linear(1, 1, bias=False), loss=falling, params={"weight": np.zeros((1, 1))}
    )
    a = [(1 - (1 - lr * mu) ** tau) / (lr * mu) for tau in (1, 3)]
    assert float(done.params["weight"]) == pytest.approx(-lr * sum(a) / 2, rel=1e-12)


def test_fednova_takes_momentum_beside_a_pull_of_nothing_and_no_weight_decay(experiment: Make) -> None:
    server = {"aggregator": {"name": "fednova"}}
    still = {"optimizer": {"name": "sgd", "momentum": 0.9}, "correction": {"name": "prox", "mu": 0.0}}
    experiment(client=still, server=server)
    with pytest.raises(raysim.ExperimentError, match=r"no a_i for weight decay.*set it to 0"):
        experiment(client={"optimizer": {"name": "sgd", "weight_decay": 0.1}}, server=server)


PROBE = {"diagnostics": {"probe": 1}}


@pytest.mark.parametrize("name", ["mime", "mimelite", "feddane"])
def test_a_probe_is_refused_beside_a_pass_for_full_gradients(name: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=rf"one pass over all clients, and .*'{name}' takes two: remove"):
        experiment(client=client(name), server=PROBE)


def test_mimelite_over_sgd_takes_one_pass_so_a_probe_may_measure_it(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    lite = {"correction": {"name": "mimelite", "base": "sgd"}}
    exp = experiment(rounds=1, client=lite, server=PROBE)
    (done,) = raysim.rounds(exp, dataset=dataset)
    assert done.metrics["probe/clients"] == len(dataset.train)
    for base in ("momentum", "adam"):
        with pytest.raises(raysim.ExperimentError, match="remove the probe"):
            experiment(client={"correction": {"name": "mimelite", "base": base}}, server=PROBE)


def test_a_wrong_client_table_is_what_is_named_and_not_its_weights(experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"unknown key 'client.momentum'"):
        experiment(client=client("scaffold", momentum=1))


def test_runs_are_trained_in_one_stack_beside_a_pull_and_nothing_else() -> None:
    assert Correction().only_pulls
    for name in ALL:
        section = ClientSection.model_validate(client(name)).correction
        assert corrections.make(section).only_pulls == (name == "prox"), name
    assert not corrections.make(MimeLite(base="sgd")).only_pulls


def test_mimelite_over_sgd_is_fedavg_at_its_cost(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    plain = {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": 4}
    lite = {**plain, "correction": {"name": "mimelite", "base": "sgd"}}
    uniform = {"weighting": "uniform"}
    pairs = zip(
        raysim.rounds(experiment(client=lite, server=uniform), dataset=dataset),
        raysim.rounds(experiment(client=plain, server=uniform), dataset=dataset),
        strict=True,
    )
    for left, right in pairs:
        assert left.metrics["bytes_up"] == right.metrics["bytes_up"]
        for name, value in left.params.items():
            torch.testing.assert_close(value, right.params[name])


def test_cuda_graphs_need_a_card_and_a_stack(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"engine\.cuda_graphs = true records"):
        raysim.rounds(experiment(engine={"workers": 0, "cuda_graphs": True}), dataset=dataset)
