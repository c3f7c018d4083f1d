"""Identities of docs/algorithms.md, section 3: each one an equation between what a run leaves.

The network, the clients and the cohorts are those of test_trajectories.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.engine.plan.resolve import resolve
from raysim.run_folder import checkpoint
from raysim.server import manifest
from tests.support.corrected_runs import ANY, BATCH, LR, N, flat, run
from tests.support.states_of import states_of
from tests.support.tanh_federation import COHORTS, ROUNDS, Array, clients, network, start

Make = Callable[..., raysim.Experiment]


def params_of(steps: Any) -> list[Array]:
    return [flat({n: v.double().numpy() for n, v in done.params.items()}) for done in steps]


@pytest.mark.parametrize(
    "correction",
    [{"name": "prox", "mu": 0.0}, {"name": "adabest", "mu": 0.0, "beta": 0.0}, {"name": "mimelite", "base": "sgd"}],
    ids=lambda o: o["name"],
)
def test_a_correction_of_nothing_is_fedavg(correction: dict[str, Any], experiment: Make) -> None:
    for got, wanted in zip(params_of(run(experiment, correction)), params_of(run(experiment, None)), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-12, 1e-14)


@dataclass(frozen=True)
class Run:
    """After every round the model that is broadcast next and the server's half; after the last the clients' vectors."""

    models: list[Array]
    halves: list[dict[str, Array]]
    own: dict[str, Array]


def recorded(experiment: Make, folder: Path, correction: dict[str, Any]) -> Run:
    exp = experiment(
        rounds=ROUNDS,
        model=None,
        client={"optimizer": {"lr": LR}, "batch_size": BATCH, "epochs": 2, "correction": correction},
        cohort={"sampler": {"name": "replay", "cohorts": COHORTS}},
        engine={"workers": 0, "dtype": "float64"},
        checkpoint={"every": 1, "keep": ROUNDS},
    )
    data = raysim.FederatedDataset.from_clients(train=clients())
    raysim.run(exp, dataset=data, model=network, params=start(), path=folder, progress=False)
    after = [checkpoint.read(file) for file in sorted((folder / "checkpoints").iterdir())]
    store, layout = (
        states_of(folder),
        resolve(exp, dataset=data, model=network).model.params,
    )

    def plain(vector: torch.Tensor) -> Array:
        return flat({name: value.numpy() for name, value in layout.views(vector).items()})

    last = after[-1]
    places = manifest.places(last.clients, range(N)).items()
    return Run(
        [plain(state.weights.params) for state in after],
        [{name: plain(value) for name, value in state.correction.items()} for state in after],
        {str(i): plain(store.read(i, place, last.weights.params)) for i, place in places},
    )


def test_scaffolds_c_is_the_mean_over_all_clients(experiment: Make, tmp_path: Path) -> None:
    done = recorded(experiment, tmp_path / "run", {"name": "scaffold"})
    np.testing.assert_allclose(done.halves[-1]["c"], sum(done.own.values()) / N, 1e-12, 1e-14)


def test_scaffold_m_with_the_exact_factor_is_scaffold(experiment: Make) -> None:
    work = {"local_steps": 4}
    one = params_of(run(experiment, {"name": "scaffold"}, work=work))
    for got, wanted in zip(
        params_of(run(experiment, {"name": "scaffold_m", "exact": True}, work=work)), one, strict=True
    ):
        np.testing.assert_allclose(got, wanted, 1e-11, 1e-13)


def test_adabests_h_is_a_power_series_of_the_pseudo_gradients(experiment: Make, tmp_path: Path) -> None:
    beta = 0.7
    done = recorded(experiment, tmp_path / "run", {"name": "adabest", "mu": 0.3, "beta": beta})
    received = [flat(start()), *done.models]
    gbar = [x - half["average"] for x, half in zip(received, done.halves, strict=False)]
    for t, half in enumerate(done.halves, start=1):
        series = sum(beta ** (t - s + 1) * gbar[s - 1] for s in range(1, t + 1))
        np.testing.assert_allclose(half["h"], series, 1e-10, 1e-12)


@pytest.mark.parametrize("correction", ANY[2:4], ids=lambda o: o["name"])
def test_the_average_moves_by_h_and_the_pseudo_gradient(
    correction: dict[str, Any], experiment: Make, tmp_path: Path
) -> None:
    done = recorded(experiment, tmp_path / "run", correction)
    for x, (before, now) in zip(done.models, pairwise(done.halves), strict=False):
        gbar = x - now["average"]
        np.testing.assert_allclose(before["average"] - now["average"], before["h"] + gbar, 1e-10, 1e-13)


def test_feddyns_h_is_the_gradient_where_local_training_converged(experiment: Make, tmp_path: Path) -> None:
    """0 = grad f_i(y) - h_i - mu (x - y) at the local optimum y, so h_i + mu (x - y), the new h_i, is grad f_i(y)."""
    exp = experiment(
        rounds=2,
        model=None,
        client={"batch_size": "full", "local_steps": 500, "correction": {"name": "feddyn", "mu": 2.0}},
        cohort={"sampler": {"name": "replay", "cohorts": [["0"], ["0"]]}},
        engine={"workers": 0, "dtype": "float64"},
    )
    x, y = np.array([[1.0, 0.5], [0.2, -1.0], [0.3, 0.3]]), np.array([1.0, 0.0, 2.0])
    data = raysim.FederatedDataset.from_clients(train={"0": (x, y), "1": (x, y)})
    raysim.run(exp, dataset=data, model=lambda: nn.Linear(2, 1, bias=False), path=tmp_path / "run", progress=False)
    state = checkpoint.read(next((tmp_path / "run" / "checkpoints").iterdir()))
    place = manifest.places(state.clients, [0])[0]
    h = states_of(tmp_path / "run").read(0, place, state.weights.params).numpy()[:2]
    # One client in the cohort: its model is the average.
    end = state.correction["average"].numpy()[:2]
    np.testing.assert_allclose(h, 2 * (x @ end - y) @ x / 3, 1e-8, 1e-10)


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize("correction", ANY[2:4], ids=lambda o: o["name"])
def test_fedglads_factor_feeds_the_average_and_h(
    correction: dict[str, Any], gamma: float, experiment: Make, tmp_path: Path
) -> None:
    exp = experiment(
        rounds=ROUNDS,
        model=None,
        client={"optimizer": {"lr": LR}, "correction": correction},
        cohort={"sampler": {"name": "replay", "cohorts": COHORTS}},
        server={"glad": {"scope": "universal", "gamma": gamma, "beta": 0.5}},
        engine={"workers": 0, "dtype": "float64"},
        checkpoint={"every": 1, "keep": ROUNDS},
    )
    data = raysim.FederatedDataset.from_clients(train=clients())
    result = raysim.run(exp, dataset=data, model=network, params=start(), path=tmp_path / "run", progress=False)
    after = [checkpoint.read(file) for file in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    rows = result.rounds.to_pylist()
    factors = [row["glad_factor/0.weight"] for row in rows]
    assert (gamma == 0) == all(f == 1 for f in factors)
    for before, now, row, f in zip(after[:-1], after[1:], rows[1:], factors[1:], strict=True):
        # |x - thetabar| = f |gbar|, and all that is remembered follows from thetabar.
        moved = before.weights.params - now.correction["average"]
        np.testing.assert_allclose(float(moved.norm()), f * row["pseudo_gradient_norm"], 1e-9)
        if correction["name"] == "feddyn":
            h = before.correction["h"] + row["clients"] / N * moved
        else:
            h = correction["beta"] * (before.correction["average"] - now.correction["average"])
        np.testing.assert_allclose(now.correction["h"].numpy(), h.numpy(), 1e-9, 1e-12)
