"""FedDualAvg against a float64 NumPy re-statement of docs/algorithms.md, section 3, and centralised dual averaging."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from tests.support.corrected_runs import BATCH, DECAY, LR, SHAPES, Make, N, flat, grad
from tests.support.tanh_federation import COHORTS, ROUNDS, Array, clients, network, start

L1: dict[str, Any] = {"penalty": "l1", "strength": 0.4, "groups": ["*.weight"]}
BALL: dict[str, Any] = {"penalty": "l2_ball", "radius": 0.6, "groups": ["0.*"]}
ETA = 0.8


def parts() -> dict[str, slice]:
    made, at = {}, 0
    for name, shape in SHAPES.items():
        made[name], at = slice(at, at + int(np.prod(shape))), at + int(np.prod(shape))
    return made


def penalised(composite: dict[str, Any]) -> list[slice]:
    chosen = ("0.weight", "2.weight") if composite["penalty"] == "l1" else ("0.weight", "0.bias")
    return [parts()[name] for name in chosen]


def prox(composite: dict[str, Any], z: Array, elapsed: float) -> Array:
    w = z.copy()
    for part in penalised(composite):
        if composite["penalty"] == "l1":
            w[part] = np.sign(z[part]) * np.maximum(np.abs(z[part]) - composite["strength"] * elapsed, 0)
        else:
            w[part] = z[part] * min(1.0, composite["radius"] / float(np.linalg.norm(z[part])))
    return w


def page(composite: dict[str, Any], weighting: str = "examples") -> list[Array]:
    z, elapsed, models = flat(start()), 0.0, list[Array]()
    for t, cohort in enumerate(COHORTS):
        lr, deltas, taus = LR * DECAY**t, [], []
        for c in cohort:
            inputs, targets = clients()[c]
            own, firsts = z.copy(), [*range(0, len(targets), BATCH)] * 2
            for k, first in enumerate(firsts):
                w = prox(composite, own, elapsed + k * lr)
                own = own - lr * grad(w, inputs[first : first + BATCH], targets[first : first + BATCH])
            deltas.append(own - z)
            taus.append(len(firsts))
        n = np.array([len(clients()[c][1]) if weighting == "examples" else 1.0 for c in cohort])
        p = n / n.sum()
        z = z + ETA * sum(pi * d for pi, d in zip(p, deltas, strict=True))
        elapsed += ETA * lr * float(p @ np.array(taus))
        models.append(prox(composite, z, elapsed))
    return models


def settings(composite: dict[str, Any] | None, **sections: Any) -> dict[str, Any]:
    client = {"optimizer": {"lr": LR}, "lr_decay": DECAY, "batch_size": BATCH, "shuffle": False, "epochs": 2}
    made: dict[str, Any] = {
        "rounds": ROUNDS,
        "model": None,
        "client": client,
        "cohort": {"sampler": {"name": "replay", "cohorts": COHORTS}},
        "server": {"optimizer": {"lr": ETA}},
        "engine": {"workers": 0, "dtype": "float64", "chunk_size": 2},
    }
    return {**made, **({} if composite is None else {"composite": composite}), **sections}


def given() -> dict[str, Any]:
    data = raysim.FederatedDataset.from_clients(train=clients(), test=clients())
    return {"dataset": data, "model": network, "params": start()}


def params_of(done: Any) -> Array:
    return flat({name: done.params[name].double().numpy() for name in SHAPES})


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap", "compiled"])
@pytest.mark.parametrize("composite", [L1, BALL], ids=["l1", "l2_ball"])
def test_a_run_is_what_the_page_says(composite: dict[str, Any], trainer: str, experiment: Make) -> None:
    engine = {"workers": 0, "dtype": "float64", "chunk_size": 2, "trainer": trainer}
    rounds = list(raysim.rounds(experiment(**settings(composite, engine=engine)), **given()))
    models = page(composite)
    np.testing.assert_allclose([params_of(done) for done in rounds], models, 1e-9, 1e-12)
    zeros = [np.mean(np.concatenate([model[part] == 0 for part in penalised(composite)])) for model in models]
    np.testing.assert_allclose([done.metrics["sparsity"] or 0.0 for done in rounds], zeros)
    assert (zeros[-1] > 0.2) == (composite is L1)


def test_in_float32_it_agrees_to_rounding(experiment: Make) -> None:
    engine = {"workers": 0, "chunk_size": 2, "trainer": "stacked"}
    server = {"optimizer": {"lr": ETA}, "weighting": "uniform"}
    rounds = raysim.rounds(experiment(**settings(L1, engine=engine, server=server)), **given())
    np.testing.assert_allclose([params_of(done) for done in rounds], page(L1, "uniform"), 5e-5, 5e-6)


def test_strength_0_is_fedavg(experiment: Make) -> None:
    none = raysim.rounds(experiment(**settings({**L1, "strength": 0.0})), **given())
    for got, wanted in zip(none, raysim.rounds(experiment(**settings(None)), **given()), strict=True):
        np.testing.assert_allclose(params_of(got), params_of(wanted), 1e-12, 1e-14)


def test_one_local_step_of_everybody_is_centralised_dual_averaging(experiment: Make) -> None:
    work = {"optimizer": {"lr": LR}, "batch_size": "full", "local_steps": 1}
    exp = experiment(**settings(L1, client=work, cohort={"size": N}, server={"optimizer": {"lr": 1.0}}))
    x, y = (np.concatenate([data[i] for data in clients().values()]) for i in (0, 1))
    z, gradients = flat(start()), np.zeros_like(flat(start()))
    for done in raysim.rounds(exp, **given()):
        gradients = gradients + grad(prox(L1, z - LR * gradients, done.index * LR), x, y)
        np.testing.assert_allclose(params_of(done), prox(L1, z - LR * gradients, (done.index + 1) * LR), 1e-9, 1e-12)


def test_it_goes_on_to_the_same_bits_and_a_round_without_clients_leaves_the_model(
    experiment: Make, tmp_path: Path
) -> None:
    cohort = {"sampler": {"name": "bernoulli", "probability": 0.1}}
    sections = settings(L1, cohort=cohort, checkpoint={"every": 1})
    whole = list(raysim.rounds(experiment(**{**sections, "rounds": 8}), **given()))
    empty = [i for i, done in enumerate(whole) if not done.metrics["clients"]]
    assert empty
    assert empty[-1] > 0
    for i in empty:
        before = params_of(whole[i - 1]) if i else flat(start())
        np.testing.assert_array_equal(params_of(whole[i]), before)
    raysim.run(experiment(**{**sections, "rounds": 3}), path=tmp_path / "run", progress=False, **given())
    parts = {key: value for key, value in given().items() if key != "params"}
    on = raysim.resume(tmp_path / "run", rounds=8, executor="local", progress=False, **parts)
    np.testing.assert_array_equal(params_of(on), params_of(whole[-1]))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"client": {"correction": {"name": "prox", "mu": 0.1}}}, "composite has local steps of its own"),
        ({"client": {"posterior": {}}}, "composite has local steps of its own"),
        ({"client": {"optimizer": {"momentum": 0.5}}}, "plain local steps.*, but got 'sgd', momentum = 0.5"),
        ({"client": {"optimizer": {"name": "adam"}}}, "composite is defined with plain local steps"),
        ({"client": {"max_grad_norm": 1.0}}, "plain local steps.*, but got 'sgd', max_grad_norm = 1"),
        ({"server": {"optimizer": {"name": "adam"}}}, "composite is defined with server.optimizer.name = 'sgd'"),
        ({"server": {"aggregator": {"name": "median"}}}, "composite is defined with server.aggregator.name 'mean'"),
        ({"server": {"weighting": "ida"}}, "composite is defined with a mean of sums"),
        ({"cohort": {"size": 3, "sampler": {"name": "adafl"}}}, "composite sends other vectors"),
        ({"composite": {"penalty": "l1", "strength": -1.0}}, "composite.strength"),
        ({"composite": {"penalty": "l2_ball", "strength": 1.0}}, "composite"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_it_is_not_defined_with_is_refused(keys: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(**{"composite": L1, **keys})


def test_a_pattern_that_matches_nothing_is_refused(experiment: Make) -> None:
    exp = experiment(**settings({**L1, "groups": ["*.weight", "head.*"]}))
    with pytest.raises(raysim.ExperimentError, match=r"composite.groups .* \['head.\*'\] match none"):
        raysim.rounds(exp, **given())
