"""Fine-tuning: scores before and after are those of local SGD written down, and of the round's own evaluation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import raysim
from tests.support.executors import EXECUTORS, bits
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
TRAIN = make_clients([6, 9, 4, 12, 7])
TEST = {f"c{i}": own for i, own in enumerate(make_clients([8, 5, 0, 11], seed=2).values())} | make_clients(
    [4], seed=3, prefix="stranger"
)
DATA = raysim.FederatedDataset.from_clients(train=TRAIN, test=TEST)


def tuned(experiment: Make, **sections: Any) -> raysim.Experiment:
    base: dict[str, Any] = {
        "rounds": 2,
        "client": {"optimizer": {"lr": 0.2}, "lr_decay": 0.5, "batch_size": "full"},
        "cohort": {"size": 3},
        "evaluation": {"every": 1, "fine_tuning": {"steps": 3}},
        "engine": {"workers": 0, "dtype": "float64"},
    }
    return experiment(**{**base, "model": None, **sections})


@pytest.mark.parametrize("trainer", ["one_by_one", "fused", "stacked", "compiled"])
@pytest.mark.parametrize("lr", [None, 0.7])
def test_a_client_is_scored_before_and_after_its_local_steps(trainer: str, lr: float | None, experiment: Make) -> None:
    evaluation = {"every": 1, "fine_tuning": {"steps": 3} | ({} if lr is None else {"lr": lr})}
    exp = tuned(experiment, evaluation=evaluation, engine={"workers": 0, "dtype": "float64", "trainer": trainer})
    for done in raysim.rounds(exp, dataset=DATA, model=partial(nn.Linear, 5, 3)):
        assert done.clients is not None
        rows = {row["client"]: row for row in done.clients.to_pylist() if row["split"] == "fine_tuning/test"}
        # "c2" has no test examples, and the strangers do not train.
        assert list(rows) == ["c0", "c1", "c3"]
        plain = {row["client"]: row for row in done.clients.to_pylist() if row["split"] == "test"}
        for client, row in rows.items():
            w, b = done.params["weight"].clone(), done.params["bias"].clone()
            assert row["accuracy"] == plain[client]["accuracy"]
            assert row["loss"] == pytest.approx(plain[client]["loss"], rel=1e-12)
            x, y = map(torch.from_numpy, TRAIN[client])
            for _ in range(3):
                w, b = w.detach().requires_grad_(), b.detach().requires_grad_()
                gw, gb = torch.autograd.grad(functional.cross_entropy(x @ w.T + b, y), (w, b))
                step = 0.2 * 0.5**done.index if lr is None else lr
                w, b = w - step * gw, b - step * gb
            x, y = map(torch.from_numpy, TEST[client])
            outputs = (x @ w.T + b).detach()
            assert row["tuned_loss"] == pytest.approx(float(functional.cross_entropy(outputs, y)), rel=1e-10)
            assert row["tuned_accuracy"] == pytest.approx(float((outputs.argmax(1) == y).double().mean()))
        sizes = np.array([row["examples"] for row in rows.values()])
        for name, column in (("eval_tuned/test", "tuned_accuracy"), ("eval_tuned/test/before", "accuracy")):
            values = np.array([row[column] for row in rows.values()])
            assert done.metrics[f"{name}/accuracy"] == pytest.approx((values * sizes).sum() / sizes.sum())
            assert done.metrics[f"{name}/p50"] == pytest.approx(np.median(values))


def test_statistics_of_batches_are_tuned_too(experiment: Make) -> None:
    def factory() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4, momentum=1.0), nn.Linear(4, 3))

    # With lr 0 only the running statistics change, to those of the client's own examples.
    exp = tuned(experiment, evaluation={"every": 1, "fine_tuning": {"steps": 1, "lr": 0.0}})
    done = next(iter(raysim.rounds(exp, dataset=DATA, model=factory)))
    assert done.clients is not None
    p = done.params
    for row in done.clients.to_pylist():
        if row["split"] == "fine_tuning/test":
            inner = [torch.from_numpy(part[row["client"]][0]) @ p["0.weight"].T + p["0.bias"] for part in (TRAIN, TEST)]
            z = (inner[1] - inner[0].mean(0)) / (inner[0].var(0) + 1e-5).sqrt() * p["1.weight"] + p["1.bias"]
            outputs = z @ p["2.weight"].T + p["2.bias"]
            loss = functional.cross_entropy(outputs, torch.from_numpy(TEST[row["client"]][1]))
            assert row["tuned_loss"] == pytest.approx(float(loss), rel=1e-10)


def test_fine_tuning_changes_nothing_of_the_run(experiment: Make) -> None:
    with_it = raysim.rounds(tuned(experiment), dataset=DATA, model=partial(nn.Linear, 5, 3))
    without = raysim.rounds(tuned(experiment, evaluation={"every": 1}), dataset=DATA, model=partial(nn.Linear, 5, 3))
    for one, other in zip(with_it, without, strict=True):
        assert all(torch.equal(one.params[name], value) for name, value in other.params.items())


@pytest.mark.usefixtures("ray_cluster")
def test_rows_have_the_same_bits_for_any_number_of_workers(experiment: Make) -> None:
    model = partial(nn.Linear, 5, 3)
    expected = raysim.rounds(tuned(experiment), dataset=DATA, model=model)
    got = raysim.rounds(
        tuned(experiment, engine={**EXECUTORS["2 workers"], "dtype": "float64"}), dataset=DATA, model=model
    )
    for one, other in zip(expected, got, strict=True):
        assert bits(one) == bits(other)


def test_a_split_without_training_clients_is_refused(experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients(train=TRAIN, test=make_clients([4], prefix="stranger"))
    with pytest.raises(raysim.ExperimentError, match=r"no training client has any there.*such as 'c0'"):
        raysim.rounds(tuned(experiment), dataset=data, model=partial(nn.Linear, 5, 3))
    evaluation = {"fine_tuning": {"steps": 1, "split": "validation"}}
    with pytest.raises(raysim.DataError, match="no split 'validation'"):
        raysim.rounds(tuned(experiment, evaluation=evaluation), dataset=data, model=partial(nn.Linear, 5, 3))


def test_clients_see_what_an_evaluation_sees(experiment: Make) -> None:
    rng = np.random.default_rng(0)
    images = {f"c{i}": (rng.normal(size=(6, 1, 10, 10)), rng.integers(0, 3, 6)) for i in range(4)}
    data = raysim.FederatedDataset.from_clients(train=images, test=images)
    client = {"optimizer": {"lr": 0.1}, "batch_size": 3, "augment": {"name": "crop_flip_contrast", "side": 8}}

    def module() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

    for done in raysim.rounds(tuned(experiment, client=client), dataset=data, model=module):
        assert done.clients is not None
        rows = done.clients.to_pylist()
        plain = {row["client"]: row["loss"] for row in rows if row["split"] == "test"}
        before = {row["client"]: row["loss"] for row in rows if row["split"] == "fine_tuning/test"}
        assert before == pytest.approx(plain, rel=1e-12)
