"""FedPD against a float64 NumPy re-statement of docs/algorithms.md, section 3, and its identity with FedDyn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raysim
from raysim.client.corrections import fedpd
from raysim.config.section import Section
from tests.support.corrected_runs import BATCH, DECAY, LR, SGD, Make, N, flat, grad, run
from tests.support.tanh_federation import ROUNDS, Array, clients, network, start

MU = 0.4
PD = {"name": "fedpd", "mu": MU}


def page(momentum: float = 0.0, clip: float = np.inf) -> list[Array]:
    """The models that are broadcast after every round, with a batch of the stored order and two epochs."""
    x = flat(start())
    models: list[Array] = []
    dual = {c: np.zeros_like(x) for c in clients()}
    own = {c: x.copy() for c in clients()}
    for t in range(ROUNDS):
        deltas = []
        for c, (inputs, targets) in clients().items():
            y, velocity = own[c].copy(), np.zeros_like(x)
            for first in [*range(0, len(targets), BATCH)] * 2:
                batch = slice(first, first + BATCH)
                velocity = momentum * velocity + grad(y, inputs[batch], targets[batch]) + dual[c] + MU * (y - x)
                y = y - LR * DECAY**t * velocity
            dual[c] = dual[c] + MU * (y - x)
            own[c] = y
            deltas.append(y + dual[c] / MU - x)
        h = [d * min(1.0, clip / float(np.linalg.norm(d))) for d in deltas]
        x = x + sum(h) / N
        models.append(x)
    return models


def params_of(steps: Any) -> list[Array]:
    return [flat({name: value.double().numpy() for name, value in done.params.items()}) for done in steps]


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap", "compiled"])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_a_run_is_what_the_page_says(trainer: str, momentum: float, experiment: Make) -> None:
    optimizer = {**SGD, "momentum": momentum}
    got = params_of(run(experiment, PD, optimizer, trainer, everyone=True))
    np.testing.assert_allclose(got, page(momentum), 1e-9, 1e-12)


def test_what_is_sent_is_clipped_and_the_client_keeps_what_it_had(experiment: Make) -> None:
    got = params_of(run(experiment, PD, everyone=True, bound=0.3))
    np.testing.assert_allclose(got, page(clip=0.3), 1e-9, 1e-12)


def test_fedglads_factor_scales_the_mean_of_what_is_sent(experiment: Make) -> None:
    # gamma 0 is factor 1; another bound acts from the second round on.
    off = params_of(run(experiment, PD, everyone=True, glad={"gamma": 0.0, "scope": "universal"}))
    np.testing.assert_allclose(off, page(), 1e-9, 1e-12)
    on = params_of(run(experiment, PD, everyone=True, glad={"gamma": "inf", "scope": "universal"}))
    np.testing.assert_allclose(on[0], off[0], 1e-12)
    assert not np.allclose(on[1], off[1], 1e-6)


CORRECTED = {"client": {"correction": PD}}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"server": {"optimizer": {"name": "adam"}}}, "server.optimizer.name = 'sgd'"),
        ({"server": {"optimizer": {"lr": 0.5}}}, "server.optimizer.lr must be 1"),
        ({"server": {"lr_scaling": {"warmup": 3}}}, "server.optimizer.lr must be 1"),
        ({"server": {"weighting": "examples"}}, "server.weighting = 'uniform'"),
        ({"server": {"aggregator": {"name": "median"}}}, "server.aggregator.name 'mean'"),
        ({"client": {"correction": PD, "mid_round_dropout": 0.1}}, "clients leave by client.mid_round_dropout = 0.1"),
        (
            {"systems": {"time": {"name": "straggler", "alpha": 1.0, "lambda": 1.0}, "deadline_s": 3.0}},
            "clients leave by systems.deadline_s = 3.0",
        ),
        ({"cohort": {"size": N, "sampler": {"name": "md"}}}, "may draw a client several times"),
        ({"client": {"correction": {"name": "fedpd", "mu": 0.0}}}, "mu"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_is_not_defined_with_is_refused(keys: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(**{**CORRECTED, "cohort": {"size": N}, **keys})


@pytest.mark.parametrize(
    ("cohort", "message"),
    [
        ({"size": N - 1}, "the cohort of round 0 has 4 of 5 training clients"),
        ({"sampler": {"name": "bernoulli", "probability": 0.9}}, "'bernoulli' vary"),
        ({"size": N, "sampler": {"name": "availability", "day": 4, "open": 0.5}}, "'availability' vary"),
        (
            {"sampler": {"name": "replay", "cohorts": [["0", "1", "2", "3", "4"], ["0"]]}},
            "the cohort of round 1 has 1 of 5",
        ),
    ],
    ids=["uniform", "bernoulli", "availability", "replay"],
)
def test_every_client_takes_part_in_every_round(cohort: dict[str, Any], message: str, experiment: Make) -> None:
    exp = experiment(**CORRECTED, rounds=2, model=None, cohort=cohort)
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.rounds(exp, dataset=raysim.FederatedDataset.from_clients(train=clients()), model=network)


def test_in_float32_it_agrees_to_rounding(experiment: Make) -> None:
    got = params_of(run(experiment, PD, dtype="float32", trainer="fused", everyone=True))
    np.testing.assert_allclose(got, page(), 5e-5, 5e-6)


def test_started_at_x_it_is_feddyn(experiment: Make) -> None:
    def at_x(section: Section) -> raysim.Correction:
        made = fedpd.make(fedpd.FedPd(mu=MU))
        return made._replace(client=made.client._replace(begin=None))

    exp = experiment(
        rounds=ROUNDS,
        model=None,
        client={"optimizer": {"lr": LR}, "batch_size": BATCH, "epochs": 2, "correction": {"name": "own"}},
        cohort={"size": N},
        engine={"workers": 0, "dtype": "float64"},
    )
    data = raysim.FederatedDataset.from_clients(train=clients())
    given: dict[str, Any] = {"dataset": data, "model": network, "params": start()}
    pd = params_of(raysim.rounds(exp, correction=at_x, **given))
    dyn = params_of(raysim.rounds(exp.changed([f'client.correction={{name="feddyn",mu={MU}}}']), **given))
    np.testing.assert_allclose(pd, dyn, 1e-10, 1e-13)
    assert not np.allclose(pd[-1], page()[-1], 1e-3)
