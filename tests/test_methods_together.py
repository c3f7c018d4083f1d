"""Methods that meet in one run: each keeps its own arithmetic beside the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.engine.plan.resolve import resolve
from raysim.run_folder import checkpoint
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]

ADAGRAD = {"optimizer": {"name": "adagrad", "lr": 0.05}, "batch_size": 4}
LEVEL = {"aggregator": {"name": "local_adaptivity", "correction": "joint"}}


@pytest.mark.parametrize(
    "kind", [{"name": "maml", "alpha": 0.0}, {"name": "apfl", "alpha": 0.3}], ids=lambda k: k["name"]
)
def test_local_adaptivity_divides_what_a_personalisation_sends(
    kind: dict[str, Any], experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    # Both send FedAvg's update, so its a_i are FedAvg's.
    alone = experiment(client=ADAGRAD, server=LEVEL, engine={"workers": 0, "trainer": "one_by_one"}, evaluation={})
    client = {**ADAGRAD, "personalisation": {**kind, "split": "train"}}
    beside = experiment(client=client, server=LEVEL, engine=alone.engine.model_dump(exclude_unset=True), evaluation={})
    wanted, got = (list(raysim.rounds(one, dataset=dataset)) for one in (alone, beside))
    for one, other in zip(wanted, got, strict=True):
        torch.testing.assert_close(other.weights.params, one.weights.params, rtol=1e-5, atol=1e-6)
    plain = list(raysim.rounds(experiment(client=ADAGRAD, evaluation={}), dataset=dataset))
    assert not torch.allclose(plain[-1].weights.params, wanted[-1].weights.params, rtol=1e-3)


def test_a_pull_whose_step_takes_all_of_the_model(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    # lr lam = 1: y - lr lam (y - x) is x, so the shortcut for pulls has no factor.
    own = {"name": "ditto", "lam": 10.0, "lr": 0.1, "split": "train"}
    client = {"optimizer": {"lr": 0.01}, "batch_size": 4, "personalisation": own}
    *_, last = raysim.rounds(experiment(client=client), dataset=dataset)
    assert np.isfinite(last.metrics["eval_personal/train/loss"] or np.nan)


def test_start_losses_are_of_the_model_that_is_evaluated(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    # FedDualAvg sends dual vectors, whose loss is another.
    exp = experiment(
        composite={"penalty": "l1", "strength": 0.5},
        server={"fairness": {"name": "tilt", "t": 0.0}, "weighting": "examples"},
        cohort={"size": 20},
        evaluation={"every": 1, "split": "train"},
    )
    done = list(raysim.rounds(exp, dataset=dataset))
    for before, after in pairwise(done):
        assert after.metrics["start_loss"] == pytest.approx(before.metrics["eval/train/loss"], rel=1e-5)


def test_a_rate_that_has_decayed_to_nothing_moves_nothing(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    client = {"optimizer": {"lr": 0.1}, "batch_size": 4, "lr_decay": 1e-200}
    first, *_, last = raysim.rounds(
        experiment(client=client, server={"fairness": {"name": "qffl", "q": 1.0}}), dataset=dataset
    )
    assert torch.equal(first.weights.params, last.weights.params)


@pytest.mark.parametrize("correction", [None, {"name": "scaffold"}, {"name": "scaffold_m"}])
@pytest.mark.parametrize("decay", [1e-20, 1e-39, 1e-300])
@pytest.mark.parametrize("trainer", ["one_by_one", "stacked"])
def test_a_rate_that_decays_far_ends_no_run(
    correction: dict[str, Any] | None, decay: float, trainer: str, experiment: Make
) -> None:
    # 1 / (tau lr), and 1 / |y - x| where weights move from 0, are no numbers of float32, and then of none.
    client = {"optimizer": {"lr": 0.1}, "batch_size": 4, "local_steps": 2, "lr_decay": decay}
    if correction is not None:
        client["correction"] = correction
    sections: dict[str, Any] = {"rounds": 20, "evaluation": {"every": 20}, "cohort": {"size": 3}}
    exp = experiment(client=client, engine={"workers": 0, "trainer": trainer}, model={"name": "linear"}, **sections)
    data = raysim.FederatedDataset.from_clients(train=make_clients([6, 7, 9]))
    # Local steps move zeros, at first and as far as they are numbers at all.
    params = {"fc.weight": torch.zeros(3, 5), "fc.bias": torch.zeros(3)}
    first = list(raysim.rounds(exp, dataset=data, params=params))
    assert [r.metrics["clients"] for r in first] == [3] * 20
    assert all(r.weights.params.isfinite().all() for r in first)
    small = exp.changed([f"client.optimizer.lr={decay}"])
    for r in raysim.rounds(small, dataset=data, params=params):
        assert r.metrics["clients"] == 3
        cosine = r.metrics["mean_cosine_similarity"]
        assert cosine is None or -1 <= cosine <= 1 + 1e-6


@pytest.mark.parametrize("decay", [1e-100, 1e-160])
def test_a_fair_objective_divides_by_no_rate_that_has_decayed_far(
    decay: float, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    client = {"optimizer": {"lr": 0.1}, "batch_size": 4, "lr_decay": decay}
    server = {"fairness": {"name": "qffl", "q": 1.0}}
    first, *_, last = raysim.rounds(experiment(client=client, server=server, rounds=4), dataset=dataset)
    assert torch.equal(first.weights.params, last.weights.params)


def test_clusters_whose_clients_weigh_nothing_stay(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(client={"batch_size": 4, "personalisation": {"name": "clusters", "count": 2, "split": "train"}})
    *_, last = raysim.rounds(exp.changed(["server.weighting=own"]), dataset=dataset, weighting=lambda at: 0.0)
    assert last.metrics["clients"] == 0
    weighed = list(raysim.rounds(exp, dataset=dataset))
    assert sum(weighed[0].metrics[f"cluster/{j}/clients"] or 0 for j in range(2)) == weighed[0].metrics["clients"] == 7


@pytest.mark.parametrize("over", [1.0, 1.5])
def test_candidates_without_a_finite_loss_take_nobodys_place(over: float, experiment: Make) -> None:
    data = make_clients([9] * 7)
    data["c3"] = data["c3"][0] * np.nan, data["c3"][1]
    bad = raysim.FederatedDataset.from_clients(train=data)
    exp = experiment(
        cohort={"size": 3, "sampler": {"name": "power_of_choice", "candidates": 7}},
        systems={"over_selection": over, "time": {"name": "straggler", "alpha": 1.0, "lambda": 1.0}},
        evaluation={"split": "train"},
    )
    for done in raysim.rounds(exp, dataset=bad):
        assert done.rejected == ("c3",)
        assert done.metrics["clients"] == 3
        assert done.metrics["asked"] == 7


def test_a_checkpoint_of_vectors_that_share_memory_is_read_back(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    # Before its first step FedDyn's average is the model itself.
    exp = experiment(client={"batch_size": 4, "correction": {"name": "feddyn", "mu": 0.1}})
    state = resolve(exp, dataset=dataset).initial_state()
    shared = dict.fromkeys(state.correction, state.weights.params)
    checkpoint.write(replace(state, correction=shared), tmp_path / "round-000000.safetensors", "")
    again = checkpoint.read(tmp_path / "round-000000.safetensors")
    assert len(again.correction) > 0
    assert all(torch.equal(value, state.weights.params) for value in again.correction.values())
