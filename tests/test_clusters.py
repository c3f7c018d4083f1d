"""Clusters: equal to a plain float64 loop over docs/algorithms.md section 3, and to FedAvg where there is one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from tests.support.tanh_federation import COHORTS, ROUNDS, Array, Params, clients, gradient, network, start

Make = Callable[..., raysim.Experiment]
LR, BATCH, ETA, COUNT = 0.05, 3, 0.7, 3


def starts(count: int = COUNT) -> list[Params]:
    """Models whose outputs lie apart, so that clients differ in which fits them best."""
    shifts = np.linspace(0.0, 1.6, count)
    return [{**start(), "2.bias": start()["2.bias"] + shift} for shift in shifts]


def made(experiment: Make, count: int = COUNT, **sections: Any) -> raysim.Experiment:
    client = {"optimizer": {"name": "sgd", "lr": LR}, "batch_size": BATCH, "shuffle": False}
    return experiment(
        **{
            "rounds": ROUNDS,
            "model": None,
            "cohort": {"sampler": {"name": "replay", "cohorts": COHORTS}},
            "engine": {"workers": 0, "dtype": "float64", "chunk_size": 2, "trainer": "one_by_one"},
            **sections,
            "server": {"optimizer": {"name": "sgd", "lr": ETA}, **sections.get("server", {})},
            "client": {
                **client,
                "personalisation": {"name": "clusters", "count": count, "split": "train"},
                **sections.get("client", {}),
            },
        }
    )


def federation() -> raysim.FederatedDataset:
    return raysim.FederatedDataset.from_clients(train=clients())


def steps(exp: raysim.Experiment, params: Any) -> list[Any]:
    return list(raysim.rounds(exp, dataset=federation(), model=network, params=params))


def outputs(p: Params, x: Array) -> Array:
    return np.asarray(np.tanh(x @ p["0.weight"].T + p["0.bias"]) @ p["2.weight"][0] + p["2.bias"][0])


def loss(p: Params, x: Array, y: Array) -> float:
    return float(np.mean((outputs(p, x) - y) ** 2))


def trained(p: Params, x: Array, y: Array) -> Params:
    for first in range(0, len(y), BATCH):
        step = gradient(p, x[first : first + BATCH], y[first : first + BATCH])
        p = {name: p[name] - LR * step[name] for name in p}
    return p


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
def test_a_run_is_the_plain_loop(weighting: str, beta: float, experiment: Make) -> None:
    """Each cluster has its own momentum, which stays where nobody trains it."""
    optimizer = {"name": "momentum", "lr": ETA, "beta1": beta}
    got = steps(made(experiment, server={"optimizer": optimizer, "weighting": weighting}), starts())
    data, models = clients(), starts()
    velocity = [{name: np.zeros_like(value) for name, value in start().items()} for _ in range(COUNT)]
    chosen_by_round = []
    for done, cohort in zip(got, COHORTS, strict=True):
        chosen = {name: int(np.argmin([loss(p, *data[name]) for p in models])) for name in cohort}
        chosen_by_round.append(tuple(sorted(chosen.items())))
        for j in range(COUNT):
            members = [name for name in cohort if chosen[name] == j]
            assert done.metrics[f"cluster/{j}/clients"] == len(members)
            if not members:
                continue
            w = np.array([len(data[name][1]) if weighting == "examples" else 1.0 for name in members])
            ends = [trained(models[j], *data[name]) for name in members]
            for key in models[j]:
                g = models[j][key] - sum(p * end[key] for p, end in zip(w / w.sum(), ends, strict=True))
                velocity[j][key] = beta * velocity[j][key] + g
            models[j] = {key: models[j][key] - ETA * velocity[j][key] for key in models[j]}
        assert done.metrics["clients"] == len(cohort)
        for j, p in enumerate(models):
            for key, value in p.items():
                np.testing.assert_allclose(done.params[f"{j}/{key}"], value, 1e-10, 1e-12)
    joined = {j for by in chosen_by_round for _, j in by}
    assert len(joined) > 1
    # Scored after the last round: each client by the model that fits it.
    rows = {row["client"]: row for row in got[-1].clients.to_pylist() if row["split"] == "personal/train"}
    for name, (x, y) in data.items():
        fits = [loss(p, x, y) for p in models]
        assert rows[name]["loss"] == pytest.approx(min(fits))
        assert rows[name]["global_loss"] == pytest.approx(fits[0])


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_one_cluster_is_fedavg(optimizer: str, experiment: Make) -> None:
    server = {"optimizer": {"name": optimizer, "lr": 0.1}, "clip": {"initial": 0.3}}
    one = steps(made(experiment, 1, server=server), [start()])
    plain = steps(made(experiment, 1, server=server, client={"personalisation": None}), start())
    for got, wanted in zip(one, plain, strict=True):
        for name, value in wanted.params.items():
            assert torch.equal(got.params[f"0/{name}"], value)
        for name in ("loss", "clients", "clip_level", "params_norm", "pseudo_gradient_norm", "mean_update_norm"):
            assert got.metrics[name] == wanted.metrics[name]


def test_secure_sums_are_taken_billed_and_counted_by_model(experiment: Make) -> None:
    """Each cluster's mean is that of its members' fixed-point numbers: one model a client goes up, of `bits` each."""
    bits, f, unit = 8, 7, 2.0**7
    data, models = clients(), starts()

    def at(section: dict[str, Any] | None) -> Any:
        cohort = {"sampler": {"name": "replay", "cohorts": [list(data)]}}
        server = {"optimizer": {"name": "sgd", "lr": 1.0}, "secure_sum": section}
        exp = made(experiment, rounds=1, cohort=cohort, server=server)
        return steps(exp, starts())[0]

    got, plain = at({"bits": bits, "fraction_bits": f}), at(None)
    chosen = {name: int(np.argmin([loss(p, *data[name]) for p in models])) for name in data}
    wrapped = 0
    for j, p in enumerate(models):
        members = [name for name in data if chosen[name] == j]
        total = sum(len(data[name][1]) for name in members)
        ends = [trained(p, *data[name]) for name in members]
        for key, before in p.items():
            counts = [
                np.rint(unit * len(data[name][1]) * (end[key] - before))
                for name, end in zip(members, ends, strict=True)
            ]
            whole = np.asarray(sum(counts, np.zeros_like(before)))
            folded = (whole + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)
            wrapped += int((folded != whole).sum())
            mean = folded / unit / total if members else folded
            np.testing.assert_allclose(got.params[f"{j}/{key}"], before + mean, 1e-9, 1e-12)
    assert len(set(chosen.values())) > 1
    assert got.metrics["secure_sum/wrapped"] == wrapped > 0
    size = sum(value.size for value in start().values())
    saved = plain.metrics["bytes_up"] - got.metrics["bytes_up"]
    # Everything else that goes up, the losses of the models, is as without.
    assert saved == len(data) * (8 * size - -(-bits * size // 8))


def test_the_models_start_from_seeds_behind_each_other(experiment: Make) -> None:
    """Of equal models the lowest is trained; the others are as the model's seed + j makes them."""

    def at(seed: int) -> Any:
        exp = made(experiment, 1, rounds=1, seed=seed, client={"personalisation": None, "optimizer": {"lr": 0.0}})
        (done,) = list(raysim.rounds(exp, dataset=federation(), model=network))
        return done.params

    exp = made(experiment, rounds=1, seed=5, client={"optimizer": {"lr": 0.0}})
    (done,) = list(raysim.rounds(exp, dataset=federation(), model=network))
    for j in range(COUNT):
        for name, value in at(5 + j).items():
            assert torch.equal(done.params[f"{j}/{name}"], value)
    (equal,) = steps(made(experiment, rounds=1), [start()] * COUNT)
    assert [equal.metrics[f"cluster/{j}/clients"] for j in range(COUNT)] == [len(COHORTS[0]), 0, 0]


def test_a_run_goes_on_to_the_same_bits(experiment: Make, tmp_path: Path) -> None:
    def exp(rounds: int) -> raysim.Experiment:
        return made(experiment, rounds=rounds, server={"optimizer": {"name": "adam", "lr": 0.1}})

    parts: dict[str, Any] = {"dataset": federation(), "model": network, "params": starts(), "progress": False}
    whole = raysim.run(exp(ROUNDS), path=tmp_path / "whole", **parts)
    raysim.run(exp(2), path=tmp_path / "cut", **parts)
    again = raysim.resume(tmp_path / "cut", rounds=ROUNDS, **parts)
    assert all(torch.equal(again.params[name], value) for name, value in whole.params.items())
    for name in ("loss", "params_norm", "eval_personal/train/loss", *(f"cluster/{j}/clients" for j in range(COUNT))):
        assert again.rounds[name].equals(whole.rounds[name]), name
    assert set(whole.params) == {f"{j}/{name}" for j in range(COUNT) for name in start()}


def test_a_client_that_no_model_fits_leaves_the_round(experiment: Make) -> None:
    data = clients()
    data["1"][1][0] = np.inf
    bad = raysim.FederatedDataset.from_clients(train=data)
    cohort = {"sampler": {"name": "replay", "cohorts": [[*"01234"]] * 2}}
    exp = made(experiment, rounds=2, cohort=cohort)
    for done in raysim.rounds(exp, dataset=bad, model=network, params=starts()):
        assert done.rejected == ("1",)
        counts = [done.metrics[f"cluster/{j}/clients"] or 0 for j in range(COUNT)]
        assert done.metrics["clients"] == sum(counts) == 4


@pytest.mark.usefixtures("ray_cluster")
def test_workers_change_no_bit(experiment: Make) -> None:
    alone, workers = (
        steps(made(experiment, engine={"dtype": "float64", "chunk_size": 1, **where}), starts())
        for where in ({"workers": 0}, {"workers": 2, "cpus_per_worker": 0.5})
    )
    for one, other in zip(alone, workers, strict=True):
        assert all(torch.equal(one.params[name], other.params[name]) for name in other.params)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"server": {"aggregator": {"name": "median"}}}, "must be 'mean'"),
        ({"server": {"weighting": "ida"}}, "'ida' compares"),
        ({"server": {"glad": {}}}, "server.glad is defined for one model"),
        ({"server": {"diagnostics": {"probe": 1}}}, "server.diagnostics.probe is defined for one model"),
        ({"server": {"fairness": {"name": "tilt", "t": 1.0}}}, "server.fairness is defined for one model"),
        ({"cohort": {"size": 2, "sampler": {"name": "adafl"}}}, "'adafl' is defined for one model"),
        ({"client": {"correction": {"name": "prox", "mu": 0.1}}}, "without corrections"),
    ],
    ids=str,
)
def test_what_is_not_defined_is_refused(sections: dict[str, Any], why: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=why):
        made(experiment, **sections)


def test_clusters_that_do_not_fit_are_named(experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match="count = 6 and 5 training clients"):
        steps(made(experiment, 6), None)
    with pytest.raises(raysim.ModelError, match="list of 3 mappings"):
        steps(made(experiment), start())
    with pytest.raises(raysim.ModelError, match="without buffers"):
        list(raysim.rounds(made(experiment), dataset=federation(), model=lambda: nn.BatchNorm1d(3)))
